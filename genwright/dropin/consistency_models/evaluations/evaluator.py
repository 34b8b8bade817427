"""The original's evaluator: metrics of a batch of samples against a reference batch, without TensorFlow."""

import argparse
from pathlib import Path

import torch

from evaluations.th_evaluator import open_inception
from genwright.images.metrics.feature_metrics import compare, read_features, too_few

_LABELS = {
    "inception_score": "Inception Score",
    "fid": "FID",
    "sfid": "sFID",
    "precision": "Precision",
    "recall": "Recall",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ref_batch", help="path to reference batch npz file")
    parser.add_argument("sample_batch", help="path to sample batch npz file")
    args = parser.parse_args()
    inception = open_inception(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print("computing reference batch activations and statistics...")
    reference = read_features(Path(args.ref_batch), inception)
    print("computing sample batch activations and statistics...")
    samples = read_features(Path(args.sample_batch), inception)
    if warning := too_few(samples, reference):
        print(f"Warning: {warning}")
    print("Computing evaluations...")
    found = compare(samples, reference)
    for name, label in _LABELS.items():
        if name in found:
            print(f"{label}:", found[name])


if __name__ == "__main__":
    main()
