import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

export default defineConfig({
  // The page is served at any path: by Airflow below a prefix, and by `streamsem ui` at the root.
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../airflow_provider_streamsem/web/page",
    emptyOutDir: true,
    // Fonts and images as data URLs would need another content security policy.
    assetsInlineLimit: 0,
    // The build is committed, and so has fixed names.
    rolldownOptions: { output: { entryFileNames: "page.js" } },
    chunkSizeWarningLimit: 1000,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8780" } },
  test: { environment: "jsdom" },
});
