"""A private MariaDB server from Debian's programs (``mariadb-server``), or from others, run by an unprivileged user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port


class MariaDB(Server):
    """
    Database ``test`` of user ``me`` with the password ``hunter2``, on loopback.

    :param programs: the directory with ``bin`` and ``scripts``; default: Debian's programs
    :param options: more options of the server
    """

    def __init__(self, home: Path, *, programs: Path | None = None, options: Sequence[str] = ()) -> None:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        data = home / "data"
        as_user: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(home, "mysql")
            home.chmod(0o755)
            as_user = [install.tool("setpriv"), "--reuid=mysql", "--regid=mysql", "--clear-groups"]
        if not data.exists():
            program = (
                install.tool("mariadb-install-db")
                if programs is None
                else str(programs / "scripts" / "mariadb-install-db")
            )
            base = [] if programs is None else [f"--basedir={programs}"]
            install_db = [program, "--no-defaults", *base, f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]  # fmt: skip
            subprocess.run([*as_user, *install_db], check=True, capture_output=True, cwd="/")
        init_file = home / "init.sql"
        init_file.write_text(  # one statement per line
            "CREATE DATABASE IF NOT EXISTS test;\n"
            "CREATE USER IF NOT EXISTS me@'127.0.0.1' IDENTIFIED BY 'hunter2';\n"
            "GRANT ALL ON test.* TO me@'127.0.0.1';\n"
            "GRANT RELOAD, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR ON *.* TO me@'127.0.0.1';\n"
        )
        server = install.tool("mariadbd", "/usr/sbin") if programs is None else str(programs / "bin" / "mariadbd")
        of_programs = [] if programs is None else [f"--basedir={programs}"]
        argv = [
            *as_user, server, "--no-defaults", *of_programs, f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve",
            f"--socket={home}/socket", f"--pid-file={home}/pid", f"--init-file={init_file}",
            # A killed server loses nothing that it wrote to the operating system. Only a crash of the machine would.
            "--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--sync-frm=0", *options,
        ]  # fmt: skip
        super().__init__("mariadb", home, argv, port=port)
