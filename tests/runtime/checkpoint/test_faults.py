"""Whatever happens, no directory looks complete and isn't, and the next run goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qrole.checkpoint.apply import ApplyReport, apply
from qrole.checkpoint.job import ApplyOptions
from qrole.checkpoint.staging import Staging
from qrole.checkpoint.verify import verify
from qrole.errors import CheckpointError, InterruptedRunError, OutputExistsError, QroleError
from tests.runtime.checkpoint.corruption import llama_like
from tests.runtime.checkpoint.test_apply import digest

ONLY_WEIGHTS = ApplyOptions(weight_only=True)

# Runs `apply` in a process of its own that kills itself at the n-th call of a function of `os`.
KILLED = """
import os, signal, sys
from qrole.checkpoint.apply import apply
from qrole.checkpoint.job import ApplyOptions

name, at, source, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
call, count = getattr(os, name), 0

def counted(*arguments, **keywords):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*arguments, **keywords)

setattr(os, name, counted)
apply(source, "nvfp4", out, options=ApplyOptions(weight_only=True), workers=2, force=True)
sys.exit(99)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_like(tmp_path_factory.mktemp("faults") / "source", shards=2)


@pytest.fixture(scope="module")
def wanted(source: Path) -> dict[str, str]:
    """Hashes of what an undisturbed run writes."""
    out = source.parent / "undisturbed"
    apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS)
    return digest(out)


def finish(source: Path, out: Path, wanted: dict[str, str]) -> ApplyReport:
    report = apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS)
    assert digest(out) == wanted
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    return report


def killed(name: str, at: int, source: Path, out: Path) -> int:
    command = [sys.executable, "-c", KILLED, name, str(at), str(source), str(out)]
    return subprocess.run(command, check=False, capture_output=True).returncode


POINTS = [
    *[("pwrite", n) for n in (1, 2, 3, 7, 20, 40, 44)],
    *[("write", n) for n in (1, 2, 5, 12)],
    *[("copy_file_range", n) for n in (1, 4)],
    *[("ftruncate", n) for n in (1, 2)],
    ("rename", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), POINTS)
def test_killed_and_resumed(
    source: Path, tmp_path: Path, wanted: dict[str, str], name: str, at: int
) -> None:
    out = tmp_path / "out"
    assert killed(name, at, source, out) == -signal.SIGKILL
    assert not out.exists()
    finish(source, out, wanted)


def test_a_kill_late_in_the_run_leaves_little_to_do(
    source: Path, tmp_path: Path, wanted: dict[str, str]
) -> None:
    out = tmp_path / "out"
    assert killed("rename", 1, source, out) == -signal.SIGKILL
    report = finish(source, out, wanted)
    assert report.reused_bytes == report.source_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2])
def test_killed_while_replacing(
    source: Path, tmp_path: Path, wanted: dict[str, str], at: int
) -> None:
    """With --force the old output is there, or the new one is ready to take its place."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    assert killed("rename", at, source, out) == -signal.SIGKILL
    assert not out.exists() or (out / "old").is_file()
    shutil.rmtree(out, ignore_errors=True)
    finish(source, out, wanted)


class Stop(Exception):
    pass


def at_half(action: Callable[[], Any]) -> Callable[[int, int], None]:
    """An `on_progress` that does something once, half way."""
    pending = [action]

    def tell(done: int, total: int) -> None:
        if pending and done > total // 2:
            pending.pop()()

    return tell


def test_interrupted_and_resumed(source: Path, tmp_path: Path, wanted: dict[str, str]) -> None:
    out = tmp_path / "out"

    def press_ctrl_c() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="stopped before") as caught:
        apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS, on_progress=at_half(press_ctrl_c))
    assert caught.value.exit_code == 130
    assert f"what is done is kept in {Staging(out).work}" in caught.value.hint
    assert not out.exists()
    assert finish(source, out, wanted).reused_bytes > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(
    source: Path,
    tmp_path: Path,
    wanted: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    out, write, calls = tmp_path / "out", os.pwrite, [0]

    def full(fd: int, content: Any, at: int) -> int:
        calls[0] += 1
        if calls[0] > 20:
            raise OSError(code, os.strerror(code))
        return write(fd, content, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(CheckpointError, match=os.strerror(code)) as caught:
            apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS)
    assert f"what is done is kept in {Staging(out).work}" in caught.value.hint
    assert not out.exists()
    assert finish(source, out, wanted).reused_bytes > 0


def test_a_limit_on_file_sizes(source: Path, tmp_path: Path) -> None:
    code = f"""
        import resource
        from qrole.checkpoint.apply import apply
        from qrole.errors import CheckpointError
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            apply({str(source)!r}, "mxfp8", {str(tmp_path / "out")!r})
        except CheckpointError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "File too large" in found
    assert "ulimit -f" in found
    assert not list(tmp_path.iterdir())


def test_what_is_done_of_weights_that_are_not_finite_goes(source: Path, tmp_path: Path) -> None:
    """The source has to change, so that no run could go on with it."""
    mine = Path(shutil.copytree(source, tmp_path / "mine"))
    shard = mine / "model-00002-of-00002.safetensors"
    weights = load_file(shard)
    name = next(n for n in weights if n.endswith("k_proj.weight"))
    weights[name][0, 0] = torch.nan
    save_file(weights, shard)
    with pytest.raises(CheckpointError, match=f"{name} holds a NaN") as caught:
        apply(str(mine), "mxfp8", tmp_path / "out", workers=1)
    assert "is kept" not in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("how", ["rewritten", "touched", "removed"])
def test_a_source_that_changes(source: Path, tmp_path: Path, how: str) -> None:
    mine = Path(shutil.copytree(source, tmp_path / "mine"))
    shard = mine / "model-00001-of-00002.safetensors"

    def change() -> None:
        if how == "rewritten":
            content = bytearray(shard.read_bytes())
            content[-1] ^= 1
            shard.write_bytes(content)
        elif how == "touched":
            os.utime(shard)
        else:
            shard.unlink()

    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match=r"has changed while it was read|is gone") as caught:
        apply(str(mine), "mxfp8", out, on_progress=at_half(change), workers=1)
    assert "is kept" not in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_a_source_that_changes_between_two_runs(source: Path, tmp_path: Path) -> None:
    """What an unfinished run had done of the old source is not used."""
    mine = Path(shutil.copytree(source, tmp_path / "mine"))

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        apply(str(mine), "mxfp8", tmp_path / "out", on_progress=at_half(stop), workers=1)
    llama_like(mine, shards=2, seed=5)
    report = apply(str(mine), "mxfp8", tmp_path / "out")
    assert report.dropped_remains
    assert report.reused_bytes == 0
    assert verify(tmp_path / "out", str(mine)).ok


@pytest.mark.slow
def test_a_source_that_shrinks_is_no_crash(source: Path, tmp_path: Path) -> None:
    """Touching a mapped page behind the end of a file would kill the process."""
    mine = Path(shutil.copytree(source, tmp_path / "mine"))
    code = f"""
        import os
        from qrole.checkpoint.apply import apply
        from qrole.errors import CheckpointError

        def cut(done, total):
            if done > total // 2:
                for i in (1, 2):
                    os.truncate({str(mine)!r} + f"/model-0000{{i}}-of-00002.safetensors", 4096)

        try:
            apply({str(mine)!r}, "mxfp8", {str(tmp_path / "out")!r}, on_progress=cut, workers=1)
        except CheckpointError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "has changed while it was read" in found
    assert not (tmp_path / "out").exists()


def test_two_runs_on_one_output(source: Path, tmp_path: Path, wanted: dict[str, str]) -> None:
    out = tmp_path / "out"
    other = Staging(out)
    other.lock()
    with pytest.raises(OutputExistsError, match="another run is writing"):
        apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS)
    other.release()
    finish(source, out, wanted)


def test_an_output_that_somebody_else_made_meanwhile(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def make() -> None:
        out.mkdir()
        (out / "theirs").write_text("precious")

    with pytest.raises(OutputExistsError, match="exists"):
        apply(str(source), "mxfp8", out, on_progress=at_half(make))
    assert [p.name for p in out.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("code", "message"),
    [(errno.ENOLCK, "cannot be locked: No locks available"), (errno.EWOULDBLOCK, "another run is")],
)
def test_a_file_system_without_locks_is_no_other_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(QroleError, match=message):
        apply(str(source), "mxfp8", tmp_path / "out")


def test_an_output_that_cannot_be_made(source: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        apply(str(source), "mxfp8", "/proc/none/out")
    assert caught.value.hint


def test_the_source_is_no_output(source: Path) -> None:
    with pytest.raises(OutputExistsError, match="is the source itself"):
        apply(str(source), "mxfp8", source, force=True)


def test_another_plan_starts_anew(source: Path, tmp_path: Path, wanted: dict[str, str]) -> None:
    out = tmp_path / "out"

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        apply(str(source), "mxfp8", out, on_progress=at_half(stop), workers=1)
    assert finish(source, out, wanted).dropped_remains


def test_output_files_that_somebody_removed_are_written_again(
    source: Path, tmp_path: Path, wanted: dict[str, str]
) -> None:
    out = tmp_path / "out"

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS, on_progress=at_half(stop), workers=1)
    Staging(out).out.joinpath("model-00002-of-00002.safetensors").unlink()
    report = finish(source, out, wanted)
    assert report.dropped_remains
    assert report.reused_bytes == 0


def test_a_torn_journal_line_is_done_again(
    source: Path, tmp_path: Path, wanted: dict[str, str]
) -> None:
    out = tmp_path / "out"

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS, on_progress=at_half(stop), workers=1)
    journal = Staging(out).work / "journal-0.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert finish(source, out, wanted).reused_bytes > 0


def test_a_journal_from_before_a_restart_is_not_believed(
    source: Path, tmp_path: Path, wanted: dict[str, str]
) -> None:
    out = tmp_path / "out"

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        apply(str(source), "nvfp4", out, options=ONLY_WEIGHTS, on_progress=at_half(stop), workers=1)
    journal = Staging(out).work / "journal-0.jsonl"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal.write_text(journal.read_text().replace(boot, "another-boot"))
    assert finish(source, out, wanted).reused_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_write_what_one_process_writes(
    source: Path, tmp_path: Path, wanted: dict[str, str], world: int
) -> None:
    out = tmp_path / "out"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command = ["-m", "qrole_cli", "apply", str(source), "-f", "nvfp4", "--weight-only", "-o", out]
    found = subprocess.run(
        [*launcher, "--standalone", *map(str, command)], check=False, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert digest(out) == wanted
    assert found.stderr.count("PASSED") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
