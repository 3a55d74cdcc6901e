import { Fragment } from "react";
import type { Rewrite, VersionRow } from "../api/client";
import { count, size } from "../text";
import { Facts } from "./Facts";
import { VersionLink } from "./PageLink";

/** The commits whose rows a rewrite stores again, and the files before and after it. */
export function RewriteFacts({ id, row, rewrite }: { id: string; row: VersionRow; rewrite: Rewrite }) {
  const isCounted = rewrite.old_files !== null && rewrite.old_bytes !== null;
  const before = isCounted
    ? files(rewrite.old_files, rewrite.old_bytes)
    : "not counted, because the oldest commit is more than 10,000 versions before this one";
  return (
    <Facts
      facts={[
        ["Sink", rewrite.sink],
        ["Rewritten commits", <Commits key="commits" id={id} rewrite={rewrite} />],
        ["Rows", count(rewrite.rows)],
        ["Files before", row.decided_at_ms === null ? "" : before],
        ["Files after", row.result === "commit" ? files(row.files, row.bytes) : ""],
      ]}
    />
  );
}

function files(number: number | null, bytes: number | null): string {
  return `${count(number)}, ${size(bytes ?? 0)}`;
}

/** The number of the commits, and their versions as ranges such as 3–17. */
function Commits({ id, rewrite }: { id: string; rewrite: Rewrite }) {
  const shown = rewrite.ranges.reduce((sum, { first, last }) => sum + last - first + 1, 0);
  return (
    <span>
      {count(rewrite.commits)}: version{rewrite.commits === 1 ? " " : "s "}
      {rewrite.ranges.map(({ first, last }, at) => (
        <Fragment key={first}>
          {at === 0 ? "" : ", "}
          <VersionLink id={id} version={first}>
            {first}
          </VersionLink>
          {first === last ? null : (
            <>
              –
              <VersionLink id={id} version={last}>
                {last}
              </VersionLink>
            </>
          )}
        </Fragment>
      ))}
      {shown < rewrite.commits ? ` and ${count(rewrite.commits - shown)} more` : ""}
    </span>
  );
}
