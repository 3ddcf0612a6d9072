"""The memory history: its snapshots go through PyTorch's own tools for them, and its stacks name who asked."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ninguang_faults import Faults
from torch.cuda import _memory_viz

DEVICE = torch.device("fl:1")
MB = 1 << 20
memory = torch.fl.memory
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def no_history_before_or_after() -> Iterator[None]:
    torch.fl.empty_cache()
    yield
    memory._record_memory_history(None)


def _make_weights() -> torch.Tensor:
    return torch.empty(3 * MB, dtype=torch.uint8, device=DEVICE)


def _segment_events() -> tuple[str, str]:
    """Names of taking memory from the chip and giving it back: where segments grow, it is mapped."""
    grows = torch.fl.get_device_properties(DEVICE).expandable_segments
    return ("segment_map", "segment_unmap") if grows else ("segment_alloc", "segment_free")


def _events(snapshot: dict, *actions: str) -> list[dict]:
    return [e for e in snapshot["device_traces"][DEVICE.index] if not actions or e["action"] in actions]


def _block(snapshot: dict, tensor: torch.Tensor) -> dict:
    (block,) = [b for s in snapshot["segments"] if s["device"] == tensor.device.index for b in s["blocks"]
                if b["address"] == tensor.data_ptr()]  # fmt: skip
    return block


def _names(frames: list[dict]) -> list[str]:
    return [f["name"] for f in frames if f["filename"] == __file__]


def test_events_of_one_tensor() -> None:
    memory._record_memory_history(max_entries=1000, stacks="python")
    x = _make_weights()
    address = x.data_ptr()
    del x
    torch.fl.empty_cache()
    snapshot = memory._snapshot()
    mine = [(e["action"], e["size"]) for e in _events(snapshot) if e.get("addr") == address]
    segment = mine[0][1]
    assert segment >= 3 * MB
    taken, given_back = _segment_events()
    assert mine == [(taken, segment), ("alloc", 3 * MB), ("free_requested", 3 * MB),
                    ("free_completed", 3 * MB), (given_back, segment)]  # fmt: skip
    assert [e["action"] for e in _events(snapshot)][-1] == "snapshot"
    times = [e["time_us"] for e in _events(snapshot)]
    assert times == sorted(times) and times[0] > 1.7e15  # since 1970
    for event in _events(snapshot, "alloc", taken):
        assert _names(event["frames"])[:2] == ["_make_weights", "test_events_of_one_tensor"]
    for event in _events(snapshot, "free_requested", given_back):
        assert _names(event["frames"])[0] == "test_events_of_one_tensor"
    assert [len(trace) for index, trace in enumerate(snapshot["device_traces"]) if index != DEVICE.index] == [1]


def test_the_viewer_reads_the_file(tmp_path: Path) -> None:
    memory._record_memory_history(max_entries=1000)
    x = _make_weights()
    small = [torch.ones(100, device=DEVICE) for _ in range(5)]
    del small[2]
    memory._dump_snapshot(tmp_path / "dump.pickle")
    with open(tmp_path / "dump.pickle", "rb") as file:
        snapshot = pickle.load(file)
    text = _memory_viz.segsum(snapshot)
    segments = [s for s in snapshot["segments"] if s["device"] == DEVICE.index]
    assert f"segments: {len(snapshot['segments'])}" in text
    assert sum(s["total_size"] for s in segments) == torch.fl.memory_reserved(DEVICE)
    assert sum(s["allocated_size"] for s in segments) == torch.fl.memory_allocated(DEVICE)
    assert {s["segment_type"] for s in segments} == {"small", "large"}
    trace = _memory_viz.trace(snapshot)
    assert "Device 1 ---" in trace and "3.0MiB" in trace
    assert "pickle" in _memory_viz.trace_plot(snapshot) and "pickle" in _memory_viz.segment_plot(snapshot)
    assert "pickle" in _memory_viz.trace_plot(snapshot, plot_segments=True, filter_freed=True)
    flames = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    (line,) = [line for line in flames.splitlines() if line.endswith(f" {3 * MB}")]
    assert line.startswith("stream_0;active_allocated;") and "_make_weights" in line
    assert any("torch" in f["filename"] or "::" in f["name"] for f in _block(snapshot, x)["frames"])  # C++ too
    assert "active_allocated" in _memory_viz.segments(snapshot, format_flamegraph=lambda lines: lines)


class _Ranges:
    """Parts of address space."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = ranges
        self.join()

    def join(self) -> None:
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self.ranges):
            if joined and joined[-1][1] == begin:
                begin = joined.pop()[0]
            assert not joined or joined[-1][1] < begin, "two segments overlap"
            joined.append((begin, end))
        self.ranges = joined

    def holds(self, begin: int, end: int) -> bool:
        return any(a <= begin and end <= b for a, b in self.ranges)

    def add(self, begin: int, end: int) -> None:
        self.ranges.append((begin, end))
        self.join()

    def remove(self, begin: int, end: int) -> None:
        ((a, b),) = [(a, b) for a, b in self.ranges if a <= begin and end <= b]
        self.ranges.remove((a, b))
        self.ranges += [part for part in ((a, begin), (end, b)) if part[0] < part[1]]


def _state(snapshot: dict) -> tuple[_Ranges, dict[int, int]]:
    mine = [s for s in snapshot["segments"] if s["device"] == DEVICE.index]
    blocks = {b["address"]: b["requested_size"] for s in mine for b in s["blocks"] if b["state"] != "inactive"}
    return _Ranges([(s["address"], s["address"] + s["total_size"]) for s in mine]), blocks


def _undo(snapshot: dict) -> tuple[_Ranges, dict[int, int]]:
    """Goes back in time from the snapshot, event by event, as the viewer does; each must fit what is there."""
    segments, blocks = _state(snapshot)
    for event in reversed(_events(snapshot)):
        begin, size = event.get("addr", 0), event["size"]
        match event["action"]:
            case "alloc":
                assert blocks.pop(begin) == size and segments.holds(begin, begin + size), event
            case "free_requested":
                assert blocks[begin] == size, event
            case "free_completed":
                assert begin not in blocks and segments.holds(begin, begin + size), event
                blocks[begin] = size
            case "segment_alloc" | "segment_map":
                segments.remove(begin, begin + size)
                assert all(segments.holds(a, a + s) for a, s in blocks.items()), event
            case "segment_free" | "segment_unmap":
                segments.add(begin, begin + size)
    return segments, blocks


def test_events_lead_back_to_the_beginning() -> None:
    kept = [torch.empty(2 * MB, dtype=torch.uint8, device=DEVICE)]
    memory._record_memory_history(context=None, max_entries=100_000)
    before_segments, before_blocks = _state(memory._snapshot())
    side = torch.fl.Stream(DEVICE)
    random = torch.Generator().manual_seed(0)
    for step in range(400):
        size = int(10 ** (2 + 5.5 * torch.rand((), generator=random).item()))
        with torch.fl.stream(side if step % 3 == 0 else torch.fl.default_stream(DEVICE)):
            kept.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
            if step % 5 == 0:
                kept[-1].record_stream(torch.fl.default_stream(DEVICE))
        if len(kept) > 20:
            del kept[int(torch.randint(1, len(kept), (), generator=random))]
        if step % 100 == 99:
            torch.fl.empty_cache()
    snapshot = memory._snapshot()
    assert {"alloc", "free_completed"} < {e["action"] for e in _events(snapshot)}
    segments, blocks = _undo(snapshot)
    assert blocks == before_blocks and segments.ranges == before_segments.ranges


def test_events_of_a_preallocated_arena_lead_back(run_python, tmp_path: Path) -> None:
    profile = json.loads((Path(__file__).parents[2] / "chips/ninguang/profile.json").read_text())
    profile["memory_pool"]["prealloc_mb"] = 64
    profile["adapter"] = "ninguang"
    (tmp_path / "arena.json").write_text(json.dumps(profile))
    run_python(f"""
        import torch, torch_fl
        from test_memory_history import DEVICE, _events, _state, _undo, memory
        torch.fl.memory._record_memory_history(context=None)
        torch_fl.register_device({str(tmp_path / "arena.json")!r})
        kept = []
        for step in range(60):
            kept.append(torch.empty((step % 7 + 1) << 20, dtype=torch.uint8, device=DEVICE))
            if len(kept) > 8: del kept[step % 8]
            if step % 20 == 19: torch.fl.empty_cache()
        snapshot = memory._snapshot()
        assert _events(snapshot, "segment_alloc", "segment_map")[0]["size"] == 64 << 20
        assert sum(s["total_size"] for s in snapshot["segments"]) == torch.fl.memory_reserved(DEVICE)
        segments, blocks = _undo(snapshot)
        assert segments.ranges == [] and blocks == {{}}
    """, TORCH_FL_CHIPS=str(tmp_path / "arena.json"))


def test_the_state_alone() -> None:
    before = _make_weights()
    memory._record_memory_history("state", stacks="python")
    x = _make_weights()
    snapshot = memory._snapshot(DEVICE)
    assert _events(snapshot) == [] and _block(snapshot, before)["frames"] == []
    assert _names(_block(snapshot, x)["frames"])[0] == "_make_weights"
    assert _names(memory._allocation_traceback(x.data_ptr()))[0] == "_make_weights"
    address = x.data_ptr()
    del x
    assert memory._allocation_traceback(address) is None
    assert {s["device"] for s in snapshot["segments"]} == {DEVICE.index}


@pytest.mark.parametrize(("context", "of_block", "of_alloc", "of_free"),
                         [(None, False, False, None), ("state", True, False, None),
                          ("alloc", True, True, "_make_weights"),
                          ("all", True, True, "test_levels_of_stacks")])  # fmt: skip
def test_levels_of_stacks(context: str | None, of_block: bool, of_alloc: bool, of_free: str | None) -> None:
    memory._record_memory_history(context=context, stacks="python", max_entries=100)
    x = _make_weights()
    assert bool(_block(memory._snapshot(), x)["frames"]) == of_block
    del x
    snapshot = memory._snapshot()
    assert bool(_events(snapshot, "alloc")[0]["frames"]) == of_alloc
    assert (_names(_events(snapshot, "free_completed")[0]["frames"]) or [None])[0] == of_free


def test_the_oldest_events_go_first() -> None:
    memory._record_memory_history(max_entries=6, stacks="python", context=None)
    for size in range(1, 11):
        torch.empty(size * 1000, dtype=torch.uint8, device=DEVICE)
    snapshot = memory._snapshot()
    assert [e["size"] for e in _events(snapshot)] == [9000, 9000, 10000, 10000, 10000, 0]
    assert snapshot["allocator_settings"]["trace_alloc_overflowed"]
    memory._record_memory_history(max_entries=6, context=None, clear_history=True, skip_actions=["snapshot", "alloc"])
    torch.empty(1000, dtype=torch.uint8, device=DEVICE)
    assert [e["action"] for e in _events(memory._snapshot())] == ["free_requested", "free_completed"]
    memory._record_memory_history(None)
    assert _events(memory._snapshot()) == []


def test_memory_that_waits_for_another_stream(faults: Faults) -> None:
    memory._record_memory_history(max_entries=100, context=None)
    side = torch.fl.Stream(DEVICE)
    x = _make_weights()
    host = torch.ones(1000).pin_memory()
    faults.arm(f"slow_copy:1000000@{DEVICE.index}")
    with torch.fl.stream(side):
        host.to(DEVICE, non_blocking=True)  # busy for a second
    x.record_stream(side)
    address = x.data_ptr()
    del x
    snapshot = memory._snapshot()
    states = {b["state"] for s in snapshot["segments"] for b in s["blocks"] if b["address"] == address}
    done = [e["action"] for e in _events(snapshot) if e.get("addr") == address]
    assert states == {"active_pending_free"} and done[-1] == "free_requested"
    torch.fl.synchronize(DEVICE)
    torch.fl.empty_cache()
    done = [e["action"] for e in _events(memory._snapshot()) if e.get("addr") == address]
    assert done[-3:] == ["free_requested", "free_completed", _segment_events()[1]]
    sides = {e["stream"] for e in _events(memory._snapshot(), "alloc")}
    assert sides == {0, side.stream_id}


def test_backward_on_autograds_threads_has_stacks() -> None:
    memory._record_memory_history(max_entries=1000)
    w = torch.ones(500, 500, device=DEVICE, requires_grad=True)
    (w @ w).sum().backward()
    snapshot = memory._snapshot()
    frames = _block(snapshot, w.grad)["frames"]
    assert any("Backward" in f["name"] or "autograd" in f["name"] for f in frames), [f["name"] for f in frames]


def test_metadata_and_annotations() -> None:
    memory._record_memory_history(max_entries=100, context=None)
    memory._set_memory_metadata("epoch 3")
    assert memory._get_memory_metadata() == "epoch 3"
    with torch.profiler.record_function("my step"):
        x = _make_weights()
    memory._set_memory_metadata("")
    del x
    snapshot = memory._snapshot()
    assert [e.get("user_metadata") for e in _events(snapshot, "alloc", "free_requested")] == ["epoch 3", None]
    marks = [(a["name"], a["stage"]) for a in snapshot["external_annotations"]]
    assert marks == [("my step", "START"), ("my step", "END")]


def test_out_of_memory_is_an_event_and_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory._record_memory_history(max_entries=100, stacks="python")
    seen, mistakes = [], []
    monkeypatch.setattr(sys, "unraisablehook", mistakes.append)

    def observe(*args: int) -> None:
        seen.append(args)
        memory._dump_snapshot(tmp_path / "oom.pickle")

    def broken(*args: int) -> None:
        raise ValueError("a mistake in an observer")

    total = torch.fl.get_device_properties(DEVICE).total_memory
    x = _make_weights()
    with memory._attach_out_of_memory_observer(observe), memory._attach_out_of_memory_observer(broken):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total + 1, dtype=torch.uint8, device=DEVICE)
    assert [str(mistake.exc_value) for mistake in mistakes] == ["a mistake in an observer"]  # told, and nothing else
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total + 2, dtype=torch.uint8, device=DEVICE)
    ((device, asked, allocated, free),) = seen
    assert (device, asked, allocated) == (DEVICE.index, total + 1, torch.fl.memory_allocated(DEVICE))
    assert 0 < free <= total
    snapshot = pickle.loads((tmp_path / "oom.pickle").read_bytes())
    (event,) = _events(snapshot, "oom")
    assert event["size"] == total + 1 and event["device_free"] == free and "addr" not in event
    assert _names(event["frames"])[0] == "test_out_of_memory_is_an_event_and_seen"
    assert "raise OutOfMemoryError" in _memory_viz.trace(snapshot) and _block(snapshot, x)["frames"]
    assert len(_events(memory._snapshot(), "oom")) == 2


def test_bad_arguments_are_told() -> None:
    for arguments in ({"enabled": True}, {"enabled": "yes"}, {"context": "free"}, {"stacks": "cpp"},
                      {"max_entries": 0}, {"skip_actions": ["malloc"]}):  # fmt: skip
        with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
            memory._record_memory_history(**arguments)
    with pytest.raises(NotImplementedError, match="compile_context"):
        memory._record_memory_history(compile_context=True)
    assert memory._allocation_traceback(12345) is None


def test_threads_record_while_others_look() -> None:
    """Stacks need the interpreter, and the allocator its lock: neither may wait for the other with its own held."""
    memory._record_memory_history(max_entries=500)
    stop = threading.Event()

    def work() -> None:
        w = torch.ones(64, 64, device=DEVICE, requires_grad=True)
        while not stop.is_set():
            (w @ w).sum().backward()
            torch.fl.empty_cache()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            snapshot = memory._snapshot()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(_events(snapshot)) <= 500
    assert _memory_viz.segsum(snapshot)


@pytest.mark.parametrize(
    ("grows", "taken", "given_back"), [("0", "segment_alloc", "segment_free"), ("1", "segment_map", "segment_unmap")]
)
def test_the_log_of_segments(run_python, tmp_path: Path, grows: str, taken: str, given_back: str) -> None:
    code = """
        import torch
        x = torch.empty(30 << 20, dtype=torch.uint8, device="fl:1")
        del x
        torch.fl.empty_cache()
        try: torch.empty(1 << 40, dtype=torch.uint8, device="fl:1")
        except torch.OutOfMemoryError: pass
        kept = [torch.empty(30 << 20, dtype=torch.uint8, device="fl:1") for _ in range(1)]
        try: torch.empty(60 << 20, dtype=torch.uint8, device="fl:1")
        except torch.OutOfMemoryError: pass
    """
    path = tmp_path / "log.txt"
    environment = {"NINGUANG_MEMORY_MB": "64", "TORCH_FL_VERBOSE": "2", "TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS": grows}
    run_python(code, TORCH_FL_LOG_PATH=str(path), **environment)
    lines = [line.partition("INFO torch_fl.memory: ")[2] for line in path.read_text().splitlines()]
    assert lines[:3] == [
        f"fl:1 (ninguang): {taken} 30.00 MiB on stream 0; reserved 30.00 MiB in 1 segments, allocated 0 bytes",
        f"fl:1 (ninguang): {given_back} 30.00 MiB on stream 0; reserved 0 bytes in {grows} segments, allocated 0 bytes",
        "fl:1 (ninguang): oom 1.00 TiB on stream 0; reserved 0 bytes in 0 segments, allocated 0 bytes",
    ]
    assert any("releasing the cache to retry 60.00 MiB" in line for line in lines)
    done = run_python(code, **environment)
    assert done.stderr.count(taken) == 2  # without a file: standard error
