# One entry for everybody, also for CI. Anything with logic is a script or a test.
PREFIX ?= /usr/local

.PHONY: run test check lint fuzz loom bench bench-nvme test-gpu bench-gpu kernel-budgets test-emulated papers install wheel dist test-python test-clients test-ray test-nodes report-picture

# A small real model answers 60 prompts, twice; the two runs must agree.
# MODEL=path takes yours and skips the download; ARGS adds options, for example ARGS=--chat.
run:
	@scripts/install_deps.sh
	@MODEL="$(MODEL)" ARGS="$(ARGS)" SPLIT="$(SPLIT)" scripts/run.sh

# ARGS="-p shm" restricts it to one crate. Without the small real model its test is skipped, loudly.
test:
	@scripts/install_deps.sh
	@scripts/model.sh || true
	@scripts/test.sh $(ARGS)

# What a change needs before a commit; minutes once everything is built.
check: lint
	@scripts/install_deps.sh
	@scripts/test.sh --workspace --lib

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	python3 scripts/bench_tables.py --check
	cargo test --package end-to-end --test tidy --test imports --test words

# Hostile model files, job lines and hubs, as many as asked: make fuzz CASES=100000; SEED=N repeats a run.
fuzz:
	@scripts/install_deps.sh
	@CASES="$(CASES)" SEED="$(SEED)" scripts/fuzz.sh

# Every interleaving of the waits in shm, futex included.
loom:
	@scripts/loom.sh

# A few minutes of true OPT-30B layers with random weights; appends a line to out/bench.jsonl.
bench:
	@scripts/bench.sh

# Weights on drives, beside fio and DRAM; takes 30 GB where NVME_DIRS="d0 d1" are (target/bench-nvme), and gives them back.
bench-nvme:
	@scripts/bench_nvme.sh

# What needs a GPU, as a bundle that runs anywhere with a driver; here too. Without one every row is skipped.
test-gpu:
	@scripts/gpu_bundle.sh test

bench-gpu:
	@scripts/gpu_bundle.sh bench

# Compiles the committed PTX again: registers, spills and occupancy of each CUDA kernel must be those of
# kernels/cuda/cubin/budgets.tsv, and linears and attention must not spill. Writes docs/bench/gpu-instructions.md. Needs no GPU.
kernel-budgets:
	@scripts/ptx.sh --budgets

# Tests of the CPU kernels on a processor that this machine lacks, for example MODEL=tigerlake TESTS="kernels linear"; needs Bochs.
test-emulated:
	@scripts/install_deps.sh
	@scripts/emulated_processor.sh $(MODEL) $(TESTS)

# A virtual machine with three NUMA nodes: where memory lies that was bound to them.
test-nodes:
	@scripts/install_deps.sh
	@scripts/test_nodes.sh

# The numbers of the papers beside the planner's; a test holds docs/papers.md against it.
papers:
	cargo run --quiet --package planner --example papers > docs/papers.md.new
	mv docs/papers.md.new docs/papers.md

# A run's report as docs/pictures/report.png, by a browser without a screen.
report-picture:
	@scripts/report_picture.sh

install:
	cargo build --release --package coordinator
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh

# The Python package with the program in it, into dist/.
wheel:
	@scripts/install_deps.sh
	@scripts/wheel.sh

# What a release consists of, into dist/: wheel, tarball, list of packages (SPDX), checksums. MANYLINUX= builds for this system's C library.
dist:
	@scripts/install_deps.sh
	@scripts/dist.sh

# The wheel in a fresh environment and, with BARE=1, in a fresh system that has Python alone; then the package's own tests on it.
test-python:
	@scripts/install_deps.sh
	@BARE="$(BARE)" scripts/test_python.sh

# Client packages of OpenAI's and Anthropic's APIs, by the scripts of tests/clients. CLIENTS="openai ai" runs those two.
test-clients:
	@scripts/install_deps.sh
	@scripts/clients.sh $(CLIENTS)

# Rows dealt to three coordinators of a real Ray cluster, all on this machine; installs Ray.
test-ray:
	@scripts/install_deps.sh
	@scripts/test_ray.sh
