"""Rows as tables for people."""

from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = {
    "nvfp4": "NVFP4",
    "mxfp8": "MXFP8",
    "fp8_128x128": "FP8 128x128",
    "fp8_tensor": "FP8 tensor",
}


def tables(report: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    parts = []
    for shape in report["shapes"]:
        rows = [row for row in report["rows"] if row["shape"] == shape]
        parts.append(f"### {shape[0]}x{shape[1]} bf16, 1 thread\n\n{_one_thread(rows, report)}")
        threads = [row for row in rows if row["task"] == "threads"]
        if threads:
            parts.append(_threads(threads))
    start = report["first_quantization_seconds"]
    parts.append(
        f"First quantization of a process: {start['without_cache']:.2f} s without and "
        f"{start['with_cache']:.2f} s with the kernel cache, imports included."
    )
    return "\n\n".join(parts)


def _one_thread(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> str:
    lines = [_line("x time of the bf16 copy", FORMATS.values()), "|---" * 5 + "|"]
    for task, outputs in (
        ("quantize", "preallocated"),
        ("quantize", "fresh"),
        ("dequantize", "preallocated"),
    ):
        lines.append(_row(f"qrole {task}, {outputs}", rows, "qrole", task, outputs, "times_copy"))
    memory = {
        row["format"]: f"{row['extra_bytes_per_element']:.3f}"
        for row in rows
        if "extra_bytes_per_element" in row
    }
    lines.append(_line("qrole, extra bytes per element", [memory.get(f, "") for f in FORMATS]))
    for peer, version in report["peers"].items():
        if version["error"]:
            lines.append(_line(f"{peer}: absent ({version['error']})", [""] * len(FORMATS)))
            continue
        name = f"{peer} {version['version']}"
        lines.append(_row(name, rows, peer, "quantize", "fresh", "times_copy"))
        lines.append(
            _row(f"{name}, x time of qrole", rows, peer, "quantize", "fresh", "times_qrole")
        )
        lines.append(
            _row(
                f"{name}, x time of qrole with fresh outputs",
                rows,
                peer,
                "quantize",
                "fresh",
                "times_qrole_fresh",
            )
        )
    return "\n".join(lines)


def _threads(rows: Sequence[Mapping[str, Any]]) -> str:
    threads = rows[0]["threads"]
    found = [
        f"{FORMATS[row['format']]} {row['speedup']['median']:.2f}x faster for "
        f"{row['processor_time']['median']:.2f}x the processor time"
        for row in rows
    ]
    return f"{threads} threads against one: {'; '.join(found)}."


def _row(
    title: str, rows: Sequence[Mapping[str, Any]], who: str, task: str, outputs: str, key: str
) -> str:
    wanted = (who, task, outputs)
    found = {
        row["format"]: row[key]["median"]
        for row in rows
        if (row["who"], row["task"], row.get("outputs")) == wanted
    }
    return _line(title, [f"{found[f]:.2f}" if f in found else "" for f in FORMATS])


def _line(title: str, cells: Any) -> str:
    return "| " + " | ".join([title, *cells]) + " |"
