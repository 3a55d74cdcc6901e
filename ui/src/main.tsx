import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { ThemeProvider } from "next-themes";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { HashRouter } from "react-router-dom";
import { App } from "./App";

const queries = new QueryClient({
  defaultOptions: { queries: { retry: 1, refetchInterval: 10_000, refetchOnWindowFocus: true } },
});

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <ChakraProvider value={defaultSystem}>
        {/* Airflow stores the user's theme under the same key, so the page inside of Airflow follows it. */}
        <ThemeProvider attribute="class" disableTransitionOnChange>
          <QueryClientProvider client={queries}>
            <HashRouter>
              <App />
            </HashRouter>
          </QueryClientProvider>
        </ThemeProvider>
      </ChakraProvider>
    </StrictMode>,
  );
}
