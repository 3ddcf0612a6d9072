"""A lost device fails its own work only: whoever notices the loss names that device, others go on, nothing hangs."""

from __future__ import annotations

import pytest
from test_several_chips import has_pocl

pytestmark = pytest.mark.timeout(300)

# One device is lost for each way of noticing it first; fl:0 and, where there is one, the last one stay well.
SCRIPT = """
import ctypes, gc, threading, time, torch, torch_fl
from ninguang_faults import Faults
faults, DEVICE_LOST = Faults(), 9  # NG_ERROR_DEVICE_LOST
WELL, LAST = torch.device("fl:0"), torch.device("fl", torch.fl.device_count() - 1)

def lose(index):
    # Its kernel is queued and takes the device away when its turn comes: the host has not heard of it.
    x = torch.ones(8, device=f"fl:{index}")
    kept = x + 1
    torch.fl.synchronize(index)
    faults.arm(f"lost:1@{index}")
    x + 1
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    deadline = time.monotonic() + 30
    while faults._sdk.ngDeviceMemory(index, ctypes.byref(free), ctypes.byref(total)) != DEVICE_LOST:
        assert time.monotonic() < deadline, "the fault does not happen"
        time.sleep(0.01)
    faults.disarm()
    return kept

here = torch.arange(8.0, device=WELL)
far = torch.arange(8.0, device=LAST)
stop, trouble, rounds = threading.Event(), [], [0, 0]

def keep_busy(slot, device):
    try:
        while not stop.is_set():
            x = torch.full((1000,), 2.0, device=device)
            assert (x * x + 1).sum().item() == 5000
            rounds[slot] += 1
    except BaseException as error:
        trouble.append(f"{device}: {error!r}")

busy = [threading.Thread(target=keep_busy, args=(i, d)) for i, d in enumerate((WELL, LAST))]
for thread in busy: thread.start()

def wait_for_event(lost):
    event = torch.Event(lost.device)
    event.record(torch.accelerator.current_stream(lost.device))
    torch.accelerator.current_stream(WELL).wait_event(event)

WAYS = {
    "peer copy from it": lambda lost: lost.to(WELL),
    "peer copy to it": lambda lost: lost.copy_(here),
    "copy to another chip": lambda lost: lost.to(LAST),
    "copy from another chip": lambda lost: lost.copy_(far),
    "copy to the host": lambda lost: lost.cpu(),
    "another device's stream waits for it": wait_for_event,
}
for index, (way, notice) in enumerate(WAYS.items(), 1):
    lost = lose(index)
    begin = time.monotonic()
    for attempt in range(2):  # as news, and as known
        try:
            notice(lost)
            raise SystemExit(f"{way}: no error")
        except RuntimeError as error:
            assert "lost" in str(error) and f"fl:{index} " in str(error), (way, attempt, error)
    state = [d["lost"] for d in torch_fl.list_devices()]
    assert state == [1 <= i <= index for i in range(len(state))], (way, state)
    del lost
    assert time.monotonic() - begin < 20, way
gc.collect()
torch.fl.empty_cache()
before = list(rounds)
time.sleep(0.3)
stop.set()
for thread in busy: thread.join(30)
assert not trouble, trouble
assert all(now > then for now, then in zip(rounds, before)), "a healthy device stands still"
assert here.to(LAST).to(WELL).sum().item() == 28
torch.fl.synchronize(WELL)
"""


@pytest.mark.parametrize("chips", ["ninguang", "ninguang,pocl"])
def test_whoever_notices_names_the_lost_device(run_python, chips: str) -> None:
    if "pocl" in chips and not has_pocl():
        pytest.skip("no PoCL here")
    run_python(SCRIPT, TORCH_FL_CHIPS=chips, NINGUANG_DEVICES="8")


def test_a_stream_that_already_waits_for_it(run_python) -> None:
    """fl:0 waits for queued work of fl:1 that will never be done: it is released, and goes on by itself."""
    run_python("""
        import time, torch, torch_fl
        from ninguang_faults import Faults
        faults = Faults()
        mine = torch.ones(1000, device="fl:0")
        x = torch.ones(1 << 20, device="fl:1")
        torch.fl.synchronize(1)
        faults.arm("lost:30@1")
        for _ in range(60):
            x = x * 1.0001
        done = torch.Event("fl:1")
        try:
            done.record(torch.accelerator.current_stream(torch.device("fl:1")))
            torch.accelerator.current_stream(torch.device("fl:0")).wait_event(done)
        except RuntimeError as error:  # it was lost before the wait was queued
            assert "fl:1" in str(error) and "lost" in str(error)
        begin = time.monotonic()
        try:
            assert (mine + 1).sum().item() == 2000
        except RuntimeError as error:
            assert "fl:1" in str(error), error
        assert time.monotonic() - begin < 20
        faults.disarm()
        assert (mine + 2).sum().item() == 3000
        assert torch_fl.list_devices()[0]["lost"] is False
    """)
