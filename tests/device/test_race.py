"""The race finder: wrong programs are named exactly, right ones are silent."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from constrained_chip import Chip, drop_aliases

import torch_fl

DEVICE = "fl:1"
N = 1 << 14
pytestmark = pytest.mark.timeout(120)


def settled() -> None:
    """All earlier work is done, and no block of an earlier test comes back to this one."""
    gc.collect()
    for index in range(torch.fl.device_count()):
        torch.fl.synchronize(index)


@pytest.fixture
def side() -> torch.Stream:
    settled()
    torch.fl.empty_cache()  # an allocation that finds no memory waits for all streams, which orders them
    return torch.fl.Stream(DEVICE)


def ones(size: int = N) -> torch.Tensor:
    return torch.ones(size, device=DEVICE)


# ---------------------------------------------------------------- wrong programs


def no_wait(side: torch.Stream) -> None:
    x = ones().mul_(2.0)
    with torch.fl.stream(side):
        x.add(1.0)


def write_after_read(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x.exp()
    x.zero_()


def wait_in_the_wrong_direction(side: torch.Stream) -> None:
    x = ones().mul_(2.0)
    torch.fl.current_stream(DEVICE).wait_stream(side)
    with torch.fl.stream(side):
        x.add(1.0)


def event_recorded_too_early(side: torch.Stream) -> None:
    x = ones()
    event = torch.fl.current_stream(DEVICE).record_event()
    x.mul_(2.0)
    side.wait_event(event)
    with torch.fl.stream(side):
        x.add(1.0)


def overlapping_columns(side: torch.Stream) -> None:
    x = torch.zeros(64, 64, device=DEVICE)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    x[:, :33].mul_(2.0)
    with torch.fl.stream(side):
        x[:, 32:].add_(1.0)


def indexed_rows(side: torch.Stream) -> None:
    x, rows = torch.zeros(64, 64, device=DEVICE), torch.tensor([0, 63], device=DEVICE)
    values = torch.ones(2, 64, device=DEVICE)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x[rows] = values
    x[63].exp()


def freed_while_used(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        y = x.exp()
    address = x.data_ptr()
    del x
    z = ones()
    assert z.data_ptr() == address and y.numel() == N


def fresh_memory_of_another_stream(side: torch.Stream) -> None:
    with torch.fl.stream(side):
        x = ones()
        address = x.data_ptr()
        y = x.exp()
        del x
        z = torch.empty(N, device=DEVICE)
    assert z.data_ptr() == address and y.numel() == N
    z.zero_()


def pinned_buffer(side: torch.Stream) -> None:
    pinned, x = torch.ones(N).pin_memory(), ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        y = torch.empty(N, device=DEVICE)
        y.copy_(pinned, non_blocking=True)
    pinned.copy_(x, non_blocking=True)


def peer_copy(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    x.to("fl:0", non_blocking=True)
    with torch.fl.stream(side):
        x.zero_()


def resized_storage(side: torch.Stream) -> None:
    x = ones()
    with torch.fl.stream(side):
        x.untyped_storage().resize_(8 * N)


def imported_memory(side: torch.Stream) -> None:
    x = ones()
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    with torch.fl.stream(side):
        y.zero_()


def random_numbers(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x.normal_()
    x.exp()


def fused_optimizer(side: torch.Stream) -> None:
    p = ones()
    optimizer = torch.optim.SGD([p], lr=0.1, fused=True)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        p.grad = ones()
    optimizer.step()


def gradient_of_another_stream(side: torch.Stream) -> None:
    x = ones().requires_grad_()
    (x * 2.0).sum().backward()
    with torch.fl.stream(side):
        x.grad.zero_()


# The first operation's name begins with, the second's, the cause, the streams (default: False, side: True).
WRONG: list[tuple[Callable[[torch.Stream], None], str, str, str, bool, bool]] = [
    (no_wait, "aten::mul_.Tensor", "aten::add.Tensor", "unordered", False, True),
    (write_after_read, "aten::exp", "aten::zero_", "unordered", True, False),
    (wait_in_the_wrong_direction, "aten::mul_.Tensor", "aten::add.Tensor", "unordered", False, True),
    (event_recorded_too_early, "aten::mul_.Tensor", "aten::add.Tensor", "unordered", False, True),
    (overlapping_columns, "aten::mul_.Tensor", "aten::add_.Tensor", "unordered", False, True),
    (indexed_rows, "aten::_index_put_impl_", "aten::exp", "unordered", True, False),
    (freed_while_used, "aten::exp", "aten::fill_.Scalar", "freed", True, False),
    (fresh_memory_of_another_stream, "aten::exp", "aten::zero_", "reused", True, False),
    (pinned_buffer, "aten::_copy_from", "aten::_copy_from", "unordered", True, False),
    (peer_copy, "aten::_copy_from", "aten::zero_", "unordered", False, True),
    (resized_storage, "aten::fill_.Scalar", "copy while a storage was resized", "unordered", False, True),
    (imported_memory, "aten::fill_.Scalar", "aten::zero_", "unordered", False, True),
    (random_numbers, "aten::normal_", "aten::exp", "unordered", True, False),
    (fused_optimizer, "aten::fill_.Scalar", "aten::_fused_sgd_", "unordered", True, False),
    (gradient_of_another_stream, "aten::mul.Tensor (in MulBackward0)", "aten::zero_", "unordered", False, True),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[0].__name__)
def test_a_wrong_program_is_named(case, side: torch.Stream) -> None:
    program, first, second, cause, first_on_side, second_on_side = case
    with torch_fl.race_check() as races:
        program(side)
        settled()
    assert races.reports, "no race was reported"
    race = races.reports[0]
    text = str(race)
    assert race.second is not None
    assert race.first.op.startswith(first) and race.second.op.startswith(second), text
    assert race.cause == cause, text
    assert (race.first.stream != 0, race.second.stream != 0) == (first_on_side, second_on_side), text
    assert race.first.writes or race.second.writes
    for part in (race, race.first, race.second):
        assert str(part) in text


# ---------------------------------------------------------------- right programs


def waits(side: torch.Stream) -> None:
    x = ones().mul_(2.0)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        y = x.add(1.0)
    torch.fl.current_stream(DEVICE).wait_stream(side)
    x.zero_()
    y.exp_()


def order_through_a_third_stream(side: torch.Stream) -> None:
    third = torch.fl.Stream(DEVICE)
    x = ones()
    third.wait_stream(torch.fl.current_stream(DEVICE))
    side.wait_stream(third)
    with torch.fl.stream(side):
        x.mul_(2.0)


def waits_of_the_host(side: torch.Stream) -> None:
    x = ones()
    for wait in (torch.fl.current_stream(DEVICE).synchronize, lambda: torch.fl.synchronize(DEVICE),
                 lambda: x.sum().item(), lambda: torch.fl.current_stream(DEVICE).record_event().synchronize()):
        x.mul_(2.0)
        wait()
        with torch.fl.stream(side):
            x.mul_(2.0)
        while not side.query():
            pass
    x.mul_(2.0)


def columns(side: torch.Stream) -> None:
    x = torch.zeros(64, 8, 64, device=DEVICE)
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x[:, :, :30].add_(1.0)
        x[:, 5:].mul_(1.0)  # on the same stream as its neighbour
        x[:, :, :30].mul_(2.0)
    x[:, :5, 30:].add_(2.0)


def interleaved(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x[::4].mul_(2.0)
    x[1::2].mul_(3.0)
    x[2::4].mul_(3.0)


def only_reads(side: torch.Stream) -> None:
    x = ones()
    side.wait_stream(torch.fl.current_stream(DEVICE))
    with torch.fl.stream(side):
        x.add(1.0)
    x.add(2.0)


def record_stream(side: torch.Stream) -> None:
    for _ in range(20):
        x = ones(1 << 18)
        side.wait_stream(torch.fl.current_stream(DEVICE))
        with torch.fl.stream(side):
            x.exp()
        x.record_stream(side)
        del x
    torch.fl.empty_cache()


def freed_after_a_wait(side: torch.Stream) -> None:
    for _ in range(20):
        with torch.fl.stream(side):
            x = ones()
        torch.fl.current_stream(DEVICE).wait_stream(side)
        x.exp()
        side.wait_stream(torch.fl.current_stream(DEVICE))
        del x


def prefetch_from_pinned_memory(side: torch.Stream) -> None:
    for step in range(20):
        batch = torch.full((N,), float(step)).pin_memory()
        with torch.fl.stream(side):
            moved = batch.to(DEVICE, non_blocking=True)
        del batch
        torch.fl.current_stream(DEVICE).wait_stream(side)
        result = moved * 2.0
        moved.record_stream(torch.fl.current_stream(DEVICE))
        back = torch.empty(N, pin_memory=True)
        back.copy_(result, non_blocking=True)
        torch.fl.current_stream(DEVICE).synchronize()
        assert back[0].item() == 2.0 * step


def peer_copies(side: torch.Stream) -> None:
    x = ones()
    for _ in range(5):
        y = x.to("fl:0", non_blocking=True)
        y.mul_(2.0)
        x.zero_()  # ordered after the copy, which ran on this device's stream
        x.copy_(y, non_blocking=True)
        y.mul_(2.0)
    assert x[0].item() == 32.0


def growing_cache(side: torch.Stream) -> None:
    cache = torch.zeros(2, 4, 64, 8, device=DEVICE)
    for token in range(32):
        side.wait_stream(torch.fl.current_stream(DEVICE))
        with torch.fl.stream(side):
            new = torch.full((2, 4, 1, 8), float(token), device=DEVICE)
            cache[:, :, token : token + 1].copy_(new)
            written = side.record_event()
        cache[:, :, :token].sum() if token else None  # what is written now is not read
        torch.fl.current_stream(DEVICE).wait_event(written)
        cache[:, :, : token + 1].sum()


def autograd_on_the_streams_of_forward(side: torch.Stream) -> None:
    w = torch.ones(32, 32, device=DEVICE, requires_grad=True)
    other = torch.fl.Stream(DEVICE)
    for _ in range(3):
        losses = []
        for stream in (side, other):
            stream.wait_stream(torch.fl.current_stream(DEVICE))
            with torch.fl.stream(stream):
                losses.append((w @ w).relu().sum())
        for loss, stream in zip(losses, (side, other), strict=True):
            torch.fl.current_stream(DEVICE).wait_stream(stream)
            loss.record_stream(torch.fl.current_stream(DEVICE))
        (losses[0] + losses[1]).backward()
        with torch.no_grad():
            w -= 1e-3 * w.grad
        w.grad = None


def model_split_over_two_devices(side: torch.Stream) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(16, 32).to("fl:0"), torch.nn.Linear(32, 4).to(DEVICE)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2, fused=True)
    for _ in range(3):
        x = torch.randn(8, 16).pin_memory().to("fl:0", non_blocking=True)
        second(first(x).relu().to(DEVICE, non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def training_with_prefetched_batches(side: torch.Stream) -> None:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.GELU(),
                                torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fetch(batches):
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.fl.stream(side):
            return [t.to(DEVICE, non_blocking=True) for t in batch]

    batches = iter(torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True))
    batch = fetch(batches)
    while batch is not None:
        torch.fl.current_stream(DEVICE).wait_stream(side)
        for t in batch:
            t.record_stream(torch.fl.current_stream(DEVICE))
        x, y = batch
        batch = fetch(batches)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


RIGHT = [waits, order_through_a_third_stream, waits_of_the_host, columns, interleaved, only_reads, record_stream,
         freed_after_a_wait, prefetch_from_pinned_memory, peer_copies, growing_cache,
         autograd_on_the_streams_of_forward, model_split_over_two_devices, training_with_prefetched_batches]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_a_right_program_is_silent(program: Callable[[torch.Stream], None], side: torch.Stream) -> None:
    with torch_fl.race_check("raise") as races:
        program(side)
        settled()
    assert not races.reports


# ---------------------------------------------------------------- how it tells


def test_the_report_says_who_where_and_what_to_do(side: torch.Stream) -> None:
    with torch_fl.race_check() as races:
        no_wait(side)
        settled()
    (race,) = races.reports
    text = str(race)
    assert race.memory == 1 and (race.block_bytes, race.first_byte, race.last_byte) == (4 * N, 0, 4 * N - 1)
    assert "default stream" in text and f"stream {side.stream_id}" in text and "wait_stream()" in text
    for race_side in (race.first, race.second):
        assert race_side is not None and race_side.place is not None
        file, line, function = race_side.place
        assert file == __file__ and function == "no_wait" and f"{file}:{line} in no_wait" in text


def test_a_race_is_warned_of_once_and_counted(side: torch.Stream) -> None:
    from torch_fl.device.race import RaceWarning

    with torch_fl.race_check("warn") as races, pytest.warns(RaceWarning, match=r"aten::add\.Tensor") as caught:
        for _ in range(3):
            no_wait(side)
            torch.fl.synchronize(DEVICE)
    assert len(caught) == len(races.reports) == 1 and races.num_found == 3
    assert caught[0].filename == __file__


def test_raising_leaves_a_process_that_works(side: torch.Stream) -> None:
    with torch_fl.race_check("raise"):
        with pytest.raises(torch_fl.RaceError, match=r"aten::mul_\.Tensor") as caught:
            no_wait(side)
        assert isinstance(caught.value, RuntimeError)
        torch.fl.synchronize(DEVICE)
        assert (ones() + 1).sum().item() == 2 * N
    torch.fl.empty_cache()  # freed memory of the side stream
    with pytest.raises(torch_fl.RaceError, match="went back to the device"), torch_fl.race_check("raise"):
        x = ones(1 << 22)
        side.wait_stream(torch.fl.current_stream(DEVICE))
        with torch.fl.stream(side):
            y = x.exp()  # kept: freed memory of the side stream would make the allocator wait for it
        del x
        torch.fl.empty_cache()
    torch.fl.synchronize(DEVICE)
    assert y.numel() == 1 << 22


def test_a_race_in_backward_reaches_the_caller(side: torch.Stream) -> None:
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, grad):
            with torch.fl.stream(side):
                return grad * 2.0

    x = ones().requires_grad_()
    with torch_fl.race_check("raise"), pytest.raises(torch_fl.RaceError, match=r"aten::mul\.Tensor \(in Careless"):
        Careless.apply(x).exp().sum().backward()
    torch.fl.synchronize(DEVICE)


def test_scopes_nest_and_end(side: torch.Stream) -> None:
    with torch_fl.race_check("raise") as outer:
        with torch_fl.race_check() as inner:
            no_wait(side)
            torch.fl.synchronize(DEVICE)
        with pytest.raises(torch_fl.RaceError):
            no_wait(side)
        torch.fl.synchronize(DEVICE)
    no_wait(side)
    torch.fl.synchronize(DEVICE)
    assert len(inner.reports) == 1 and len(outer.reports) == 1
    with pytest.raises(ValueError, match="'shout'"):
        torch_fl.race_check("shout")


RACE = """
    import torch
    side = torch.fl.Stream("fl:1")
    x = torch.ones(1024, device="fl:1")
    with torch.fl.stream(side):
        x.mul_(2.0)
    torch.fl.synchronize("fl:1")
    print("went on")
"""


@pytest.mark.parametrize(("value", "goes_on", "words"), [("1", True, "RaceWarning: race on memory of fl:1"),
                                                         ("raise", False, "RaceError: race on memory of fl:1"),
                                                         ("0", True, "")])
def test_the_environment_variable(run_python, value: str, goes_on: bool, words: str) -> None:
    done = run_python(RACE, check=False, TORCH_FL_RACE_CHECK=value)
    assert ("went on" in done.stdout) == goes_on, done.stderr
    assert words in done.stderr and bool(words) == bool(done.stderr.strip()), done.stderr


def test_operands_that_a_constrained_chip_has_rearranged(tmp_path) -> None:
    device = Chip(tmp_path, "race_chip", "-DSTRIDED_COPY").device
    try:
        x = torch.ones(8, 8, device=device)
        stream = torch.fl.Stream(device)
        stream.wait_stream(torch.fl.current_stream(device))
        with torch_fl.race_check() as races:
            x.mul_(2.0)
            with torch.fl.stream(stream):
                y = x[:, ::2] * 2.0
            torch.fl.synchronize(device)
            (race,) = races.reports
            assert race.second is not None and race.second.op == "aten::mul.Tensor, UniOp copy", str(race)
            x[:, ::2] + x.t()[:, ::2]
            torch.fl.synchronize(device)
        assert len(races.reports) == 1 and y.sum().item() == 128.0
    finally:
        drop_aliases()


def test_the_hosts_own_work_counts_where_it_sees_the_memory(run_python) -> None:
    done = run_python(
        """
        import torch, torch_fl
        from torch_fl import routing
        routing.enable("decompose", False), routing.enable("library", False)
        side = torch.fl.Stream("fl:1")
        x = torch.ones(32, 32, device="fl:1")
        torch.fl.synchronize("fl:1")
        with torch_fl.race_check() as races:
            with torch.fl.stream(side):
                x.mul_(2.0)
            torch.geqrf(x)          # no chip has it: the CPU reads x, and waits for its own stream only
            torch.fl.synchronize("fl:1")
            torch.geqrf(x)
        (race,) = races.reports
        assert race.second.stream is None and race.second.op == "aten::geqrf on the CPU", race
        assert race.first.op.startswith("aten::mul_.Tensor"), race
        """,
        NINGUANG_UNIFIED="1",
    )
    assert done.returncode == 0
