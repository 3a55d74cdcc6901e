import { Box, Button, Container, Flex, Heading, Link } from "@chakra-ui/react";
import { useTheme } from "next-themes";
import { Route, Link as RouterLink, Routes } from "react-router-dom";
import { Compare } from "./views/Compare";
import { Pipeline } from "./views/Pipeline";
import { Pipelines } from "./views/Pipelines";
import { Version } from "./views/Version";

export function App() {
  return (
    <Box minH="100vh" bg="bg" color="fg">
      <Flex as="header" align="center" gap="4" px="6" py="3" borderBottomWidth="1px">
        <Heading size="md" as="p">
          <Link asChild color="fg">
            <RouterLink to="/">Streamsem</RouterLink>
          </Link>
        </Heading>
        <Box flex="1" />
        <ThemeButton />
      </Flex>
      <Container as="main" maxW="7xl" py="6">
        <Routes>
          <Route path="/" element={<Pipelines />} />
          <Route path="/dags/:dag" element={<Pipelines />} />
          <Route path="/pipelines/:id" element={<Pipeline />} />
          <Route path="/pipelines/:id/versions/:version" element={<Version />} />
          <Route path="/pipelines/:id/compare" element={<Compare />} />
          <Route
            path="*"
            element={<Heading size="md">This page does not exist. Open the list of pipelines above.</Heading>}
          />
        </Routes>
      </Container>
    </Box>
  );
}

function ThemeButton() {
  const { resolvedTheme, setTheme } = useTheme();
  const other = resolvedTheme === "dark" ? "light" : "dark";
  return (
    <Button size="xs" variant="outline" onClick={() => setTheme(other)}>
      {other === "dark" ? "Dark" : "Light"} theme
    </Button>
  );
}
