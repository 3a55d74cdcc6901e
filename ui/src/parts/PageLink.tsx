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
