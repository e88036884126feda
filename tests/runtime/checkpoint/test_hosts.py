"""Several hosts that share a file system: one agent of torchrun on each, one job.

Each agent stands for a host: it has its own host name and process ids where this system lets tests
have them, and is two agents on one host elsewhere.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qrole.checkpoint.apply import apply
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.journal import Journal, Record, read_journals, this_machine
from qrole.checkpoint.staging import Staging
from tests.runtime.checkpoint.corruption import llama_like
from tests.runtime.checkpoint.test_apply import digest

# `qrole` in a process of torchrun; the one of rank `DOOMED` stops for good at its third write.
PROCESS = """
import os, sys, time
from pathlib import Path
from qrole_cli.main import run

call, count = os.pwrite, 0

def counted(*arguments):
    global count
    count += 1
    time.sleep(0.02)
    if os.environ["RANK"] == os.environ["DOOMED"] and count == 3:
        Path(os.environ["MARK"]).write_text(str(os.getpid()))
        time.sleep(600)
    return call(*arguments)

os.pwrite = counted
run(sys.argv[1:])
"""
NAMED = (
    "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
)
FACTORY = """
import os
import qrole

def factory(role):
    square = os.environ["RANK"] == "1"
    return qrole.MXFP8Quantizer(qrole.DType.kFloat8E4M3, with_2d_quantization=square)
"""


@functools.cache
def apart() -> tuple[str, ...]:
    """The command that gives a process a host name and process ids of its own; empty without."""
    own = ("--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
    for command in (("unshare", *own), ("unshare", "--map-root-user", *own)):
        try:
            subprocess.run([*command, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return ()


class Hosts:
    """Two hosts that run one `qrole apply`, from its arguments.

    Args:
        folder: Where the hosts' own files go.
        arguments: Of the command.
        doomed: Rank that stops working in the middle; `""` for none.
    """

    def __init__(self, folder: Path, *arguments: object, doomed: str = "") -> None:
        self.mark = folder / "mark"
        script = folder / "process.py"
        script.write_text(PROCESS)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.agents = []
        for i in range(2):
            named = [*apart(), sys.executable, "-c", NAMED, f"host{i}"] if apart() else []
            rendezvous = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            agent += ["--node-rank", str(i), "--nproc-per-node", "1", *rendezvous]
            command = [*named, *agent, str(script), "apply", *map(str, arguments)]
            environment = os.environ | {"DOOMED": doomed, "MARK": str(self.mark)}
            environment["GLOO_SOCKET_IFNAME"] = "lo"
            self.agents.append(
                subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            )

    def die(self, rank: int) -> None:
        """Takes a host down when it is in the middle of its work."""
        until = time.monotonic() + 120
        while not self.mark.is_file() or not self.mark.read_text():
            assert time.monotonic() < until, "the process came to its third write"
            time.sleep(0.05)
        self.agents[rank].kill()
        if not apart():
            os.kill(int(self.mark.read_text()), signal.SIGKILL)

    def ends(self) -> list[tuple[int, str]]:
        """Exit code and stderr of each host."""
        texts = [agent.communicate(timeout=120)[1] for agent in self.agents]
        return [(agent.returncode, text) for agent, text in zip(self.agents, texts, strict=True)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_like(tmp_path_factory.mktemp("hosts") / "source", shards=2)


@pytest.fixture(scope="module")
def wanted(source: Path) -> dict[str, str]:
    """Hashes of what one process writes."""
    out = source.parent / "one"
    apply(str(source), "nvfp4", out, options=ApplyOptions(weight_only=True))
    return digest(out)


@pytest.mark.slow
@pytest.mark.parametrize("doomed", [0, 1])
def test_a_host_that_dies(
    source: Path, tmp_path: Path, wanted: dict[str, str], doomed: int
) -> None:
    out = tmp_path / "shared" / "out"
    out.parent.mkdir()
    arguments = (source, "-f", "nvfp4", "--weight-only", "-o", out)
    hosts = Hosts(tmp_path, *arguments, doomed=str(doomed))
    hosts.die(doomed)
    code, said = hosts.ends()[1 - doomed]
    assert code != 0
    assert "another process of this run has ended before the work was done" in said
    assert "run the same command again" in said
    assert not out.exists()

    ends = Hosts(tmp_path, *arguments).ends()
    assert [code for code, _ in ends] == [0, 0], ends
    assert "that an earlier run had done" in ends[0][1]
    assert "PASSED" not in ends[1][1]
    assert digest(out) == wanted
    assert [p.name for p in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_hosts_that_would_write_different_things(source: Path, tmp_path: Path) -> None:
    (tmp_path / "factory.py").write_text(FACTORY)
    out = tmp_path / "out"
    ends = Hosts(tmp_path, source, "-f", f"{tmp_path / 'factory.py'}:factory", "-o", out).ends()
    assert all(code != 0 for code, _ in ends)
    said = ends[0][1]
    assert "process 1 on" in said
    assert "would write something else than process 0 on" in said
    if apart():
        assert "process 1 on host1" in said
    assert not out.exists()


def journaled(folder: Path, machine: str) -> None:
    """A journal in which another machine has done `a` and this one goes on with `b`."""
    path = folder / "journal-0.jsonl"
    for unit, owner in (("a", machine), ("b", this_machine())):
        journal = Journal(path, "job")
        journal.done(unit, {unit: 1.0})
        journal.close()
        path.write_text(path.read_text().replace(this_machine(), owner))


def test_a_machine_counts_while_it_takes_part(tmp_path: Path) -> None:
    journaled(tmp_path, "other")
    a, b = {"a": {"a": 1.0}}, {"b": {"b": 1.0}}
    mine = this_machine()
    assert read_journals(tmp_path, "job", {mine}) == Record(b, frozenset("a"))
    assert read_journals(tmp_path, "job", {mine, "other"}) == Record(a | b)
    assert read_journals(tmp_path, "another job", {mine}) is None


def test_work_of_a_machine_that_is_gone_is_done_again_and_said(
    source: Path, tmp_path: Path, wanted: dict[str, str]
) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise RuntimeError("stop")

    options = ApplyOptions(weight_only=True)
    with pytest.raises(RuntimeError, match="stop"):
        apply(str(source), "nvfp4", out, options=options, on_progress=stop, workers=1)
    journal = Staging(out).work / "journal-0.jsonl"
    journal.write_text(journal.read_text().replace(this_machine(), "gone"))
    report = apply(str(source), "nvfp4", out, options=options)
    assert report.reused_bytes == 0
    assert any("the machine that had done them takes no part" in text for text in report.notes)
    assert digest(out) == wanted
