"""What all pictures share: size, and a file that does not change when nothing in it did."""

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
matplotlib.rcParams["axes.grid"] = True
matplotlib.rcParams["grid.color"] = "0.9"
matplotlib.rcParams["axes.axisbelow"] = True

from matplotlib import pyplot  # noqa: E402 (the backend comes first)


def figure(columns=1):
    return pyplot.subplots(1, columns, figsize=(7 if columns == 1 else 3.2 * columns, 4), layout="constrained")


def save(figure, path):
    metadata = {"Date": None} if str(path).endswith(".svg") else None
    figure.savefig(path, metadata=metadata, dpi=120)
    print(path)
