"""FlexLLMGen's measurements of copies and matrix products."""

import re
from pathlib import Path


def test_every_link_of_this_machine_is_measured(tmp_path: Path, monkeypatch, capsys, device: str) -> None:
    from flexllmgen import profile_bandwidth

    monkeypatch.setattr(profile_bandwidth, "BATCHES", (1,))
    profile_bandwidth.profile_bandwidth(str(tmp_path / "new" / "file.npy"))
    found = re.findall(r"size:   0\.25 MB, (\w+)-to-(\w+) bandwidth: [0-9.]+ GB/s", capsys.readouterr().out)
    assert found == [link for link in profile_bandwidth.LINKS if device == "cuda" or "gpu" not in link]
    assert not list((tmp_path / "new").iterdir())


def test_products_are_measured(monkeypatch, capsys, device: str) -> None:
    from flexllmgen import profile_matmul

    monkeypatch.setitem(profile_matmul.SIZES, device, (64, 128))
    profile_matmul.bench_matmul()
    line = rf"device: {device}, N: \d+, latency: [0-9.]+ ms, TFLOPS: [0-9.]+\n"
    assert re.fullmatch(f"({line}){{2}}\n", capsys.readouterr().out)
