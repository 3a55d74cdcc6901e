import { Link } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link as RouterLink } from "react-router-dom";

/** A link to another page of the view. */
export function PageLink({ to, children }: { to: string; children: ReactNode }) {
  return (
    <Link asChild variant="underline" colorPalette="blue">
      <RouterLink to={to}>{children}</RouterLink>
    </Link>
  );
}

/** A link to the page of a version. */
export function VersionLink({ id, version, children }: { id: string; version: number; children: ReactNode }) {
  return <PageLink to={`/pipelines/${id}/versions/${version}`}>{children}</PageLink>;
}
