"""Byte counters: read by field and link, added up over wraps, idle traffic taken off."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_ports import FakeNvml, FakePorts
from linkbound.links.live.meter import TrafficMeter
from linkbound.links.live.nvml_devices import NvmlDevices
from linkbound.links.live.ports import NvmlPorts
from linkbound.links.traffic import GpuBytes, GpuFlow, LinkBytes, Traffic, flows, growth, total

GIB4 = 1 << 32


def ports_of(nvml, uuids=None):
    return NvmlPorts(NvmlDevices(nvml), uuids)


def test_every_link_is_read_in_bytes_and_they_add_up():
    fields = {(0, 138, 0): 10, (0, 139, 0): 1, (0, 138, 2): 20, (0, 139, 2): 2}
    nvml = FakeNvml(fields | {(0, 197): 5000, (0, 198): 7000})
    ports = ports_of(nvml)
    (first,) = ports.ports()
    assert first == GpuBytes(
        gpu="GPU0",
        uuid="GPU-0",
        nvlink_sent_bytes=30 * 1024,
        nvlink_received_bytes=3 * 1024,
        pcie_sent_bytes=5000,
        pcie_received_bytes=7000,
        links=(
            LinkBytes(link=0, sent_bytes=10240, received_bytes=1024),
            LinkBytes(link=2, sent_bytes=20480, received_bytes=2048),
        ),
    )
    assert ports.silent() == {}
    nvml.asked = 0
    ports.ports()
    # Which links count is known by now: two fields of each of two links, two of PCIe.
    assert nvml.asked == 6
    nvml.asked = 0
    ports.pcie()
    assert nvml.asked == 2


def test_links_that_count_bytes_are_read_where_the_older_fields_are_refused():
    (first,) = ports_of(FakeNvml({(0, 202, 1): 99, (0, 204, 1): 88})).ports()
    assert first.links == (LinkBytes(link=1, sent_bytes=99, received_bytes=88),)
    assert first.pcie_sent_bytes is None


def test_what_is_refused_has_the_drivers_reason():
    ports = ports_of(FakeNvml({(0, 197): 1, (0, 198): 2}, count=2))
    first, second = ports.ports()
    assert (first.nvlink_sent_bytes, first.pcie_received_bytes) == (None, 2)
    assert (second.gpu, second.pcie_sent_bytes) == ("GPU1", None)
    assert ports.silent() == {
        "GPU0 NVLink": "Not Supported",
        "GPU1 NVLink": "Not Supported",
        "GPU1 PCIe": "Not Supported",
    }


def test_no_driver_is_no_gpu_and_a_reason():
    class Down(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise self.NVMLError("NVML Shared Library Not Found")

    ports = ports_of(Down({(0, 197): 1}))
    assert ports.ports() == ()
    assert ports.silent() == {"NVML": "No NVIDIA driver answers (NVML Shared Library Not Found)."}


@pytest.mark.parametrize(
    ("link", "rate"), [((5, 16), 63.04e9), ((3, 8), 7.88e9), ((99, 16), None), (None, None)]
)
def test_the_rate_that_decides_how_often_to_read(link, rate):
    nvml = FakeNvml({})
    nvml.pcie_link = link
    assert ports_of(nvml).pcie_bytes_per_s() == (None if rate is None else pytest.approx(rate))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, duration_s):
        self.now += duration_s


def meter_of(ports, clock, period_s=3600.0):
    return TrafficMeter(ports, clock=clock, sleep=clock.sleep, period_s=period_s)


def test_a_window_holds_what_passed_and_the_baseline_beside_it():
    clock, ports = Clock(), FakePorts("GPU0", "GPU1")

    def rest(duration_s):
        clock.sleep(duration_s)
        ports.move("GPU0", 0, 0, 100, 50)

    meter = TrafficMeter(ports, clock=clock, sleep=rest, period_s=3600.0)
    meter.rest(2.0)
    meter.begin()
    clock.sleep(10.0)
    ports.move("GPU0", 7000, 0, 1500, 250)
    ports.move("GPU1", 0, 7000, 0, 0)
    traffic = meter.end()
    assert (traffic.duration_s, traffic.idle_duration_s, traffic.blind_gaps) == (10.0, 2.0, 1)
    assert traffic.moved[0].nvlink_sent_bytes == 7000
    assert traffic.moved[1].nvlink_received_bytes == 7000
    assert traffic.idle[0].pcie_sent_bytes == 100
    # 100 in 2 s of rest are 500 of the 1,500 in 10 s; 50 received are all of the 250.
    assert flows(traffic)[0] == GpuFlow(
        gpu="GPU0",
        nvlink_sent_bytes=7000.0,
        nvlink_received_bytes=0.0,
        host_sent_bytes=1000.0,
        host_received_bytes=0.0,
    )


def test_windows_follow_one_another():
    clock, ports = Clock(), FakePorts("GPU0")
    meter = meter_of(ports, clock)
    seen = []
    for moved in (5, 0, 9):
        meter.begin()
        ports.move("GPU0", moved)
        seen.append(meter.end().moved[0].nvlink_sent_bytes)
        ports.move("GPU0", 1000)
    assert seen == [5, 0, 9]


def test_counters_that_wrap_are_added_up_by_the_thread():
    ports = FakePorts("GPU0")
    ports.move("GPU0", 0, 0, GIB4 - 10, 5)
    meter = TrafficMeter(ports, period_s=0.001)
    meter.begin()
    for _ in range(4):
        # Each step waits until the thread has read the one before.
        read = meter._window.readings
        ports.move("GPU0", 0, 0, GIB4 // 2, GIB4 // 3)
        until = time.monotonic() + 30
        while meter._window.readings < read + 2 and time.monotonic() < until:
            time.sleep(0.001)
    moved = meter.end().moved[0]
    assert moved.pcie_sent_bytes == 4 * (GIB4 // 2)
    assert moved.pcie_received_bytes == 4 * (GIB4 // 3)


def test_a_wrap_between_the_ends_is_seen_without_a_reading_in_between():
    clock, ports = Clock(), FakePorts("GPU0", rate=1e9)
    ports.move("GPU0", 0, 0, GIB4 - 1, 0)
    meter = meter_of(ports, clock)
    meter.begin()
    clock.sleep(4.0)
    ports.move("GPU0", 0, 0, 1000, 0)
    traffic = meter.end()
    # 4 s at 1 GB/s is less than 2^32 bytes: nothing can have wrapped unseen.
    assert (traffic.moved[0].pcie_sent_bytes, traffic.blind_gaps) == (1000, 0)


def test_without_counters_there_is_no_rest_and_the_reason_stays():
    clock, ports = Clock(), FakePorts()
    ports.why = {"NVML": "No NVIDIA driver answers (x)."}
    meter = meter_of(ports, clock)
    meter.rest()
    meter.begin()
    traffic = meter.end()
    assert clock.now == 0.0
    assert (traffic.moved, traffic.silent) == ((), ports.why)
    assert total(traffic, "nvlink_sent_bytes") is None


def test_a_counter_that_went_back_is_unknown():
    before = GpuBytes(gpu="GPU0", nvlink_sent_bytes=50, nvlink_received_bytes=50)
    after = GpuBytes(gpu="GPU0", nvlink_sent_bytes=10, nvlink_received_bytes=60)
    assert growth(before, after).nvlink_sent_bytes is None
    assert growth(before, after).nvlink_received_bytes == 10


def test_requests_for_what_is_received_are_no_data():
    # recorded/h200-pair/links.jsonl, driver_push: 1,342,177,280 bytes from GPU0 to GPU1.
    moved = (
        GpuBytes(gpu="GPU0", pcie_sent_bytes=1470510804, pcie_received_bytes=2587500),
        GpuBytes(gpu="GPU1", pcie_sent_bytes=128297356, pcie_received_bytes=1449571540),
    )
    src, dst = flows(Traffic(source="x", duration_s=1.0, moved=moved))
    assert src.host_sent_bytes == pytest.approx(1.0956 * 1342177280, rel=1e-3)
    assert dst.host_sent_bytes < 0.001 * 1342177280


@given(
    st.lists(st.integers(0, GIB4 - 1), min_size=1, max_size=8),
    st.integers(0, GIB4 - 1),
)
def test_any_steps_below_a_wrap_add_up(steps, start):
    clock, ports = Clock(), FakePorts("GPU0")
    ports.move("GPU0", 0, 0, start, 0)
    meter = meter_of(ports, clock)
    meter.begin()
    for step in steps:
        ports.move("GPU0", 0, 0, step, 0)
        meter._window._take(ports.pcie())
    assert meter.end().moved[0].pcie_sent_bytes == sum(steps)
