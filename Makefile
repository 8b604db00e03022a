# Everything runs in .venv, which is made here. `make demo` and `make test` are all a newcomer needs.
#
#   make demo    install, then train the demo model        make bench   measure against CPU eager and Inductor
#   make test    install, then everything that checks      make fuzz    random programs against the CPU
#   make quick   what checks in under two minutes          make opinfo  all samples of torch's op database
#   make clean   remove what was built, .venv too

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The pinned torch is the small CPU build; a wider range would bring several GB. As setup.py needs it at build time
# already, it is installed here once, and the build is not isolated.
BUILD_NEEDS := 'setuptools>=77' 'torch==2.13.*' 'cffi>=2' ninja numpy wheel

EXTRAS := '.[test,bench]'

NATIVE_SOURCES := $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.c')
PYTHON_FOLDERS := $(wildcard adaptive native cache tests bench setup.py)

.PHONY: install demo test quick opinfo bench lint types fuzz lines clean

install: $(VENV)/.installed

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(BUILD_NEEDS)
	touch $@

# A changed C++ file is compiled in place, and alone; only a changed pyproject.toml goes through pip again.
$(VENV)/.installed: pyproject.toml setup.py $(NATIVE_SOURCES) $(wildcard native/*/*.inc) | $(VENV)/.python
	$(if $(filter pyproject.toml,$?),\
	  $(BIN)/python -m pip install --quiet --no-build-isolation --editable $(EXTRAS),\
	  $(BIN)/python setup.py --quiet build_ext --inplace)
	touch $@

demo: install
	$(BIN)/adaptive-eager demo

# tests/native opens and closes the runtime at will: in a process without the torch device.
test: lint types
	$(BIN)/python -m pytest tests/native
	$(BIN)/python -m pytest tests --ignore=tests/native -m 'not slow'
	$(BIN)/python -m pytest tests --ignore=tests/native --ignore=tests/device/test_opinfo.py -m slow
	@$(MAKE) --no-print-directory lines

quick: lint types
	$(BIN)/python -m pytest tests/adaptive tests/cases tests/device/test_programs.py tests/device/test_errors.py -m 'not slow' -x

# Every sample of every traced op, in every dtype (that the modes agree bit for bit is what the other tests say).
opinfo: install
	$(BIN)/python -m pytest tests/device/test_opinfo.py

bench: install
	$(BIN)/python -m bench.run

lint: install
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/ruff format --check $(PYTHON_FOLDERS)
	$(if $(NATIVE_SOURCES),$(BIN)/clang-format --dry-run -Werror $(NATIVE_SOURCES))

# mypy does not follow an editable install whose package is mapped onto three folders, so it gets the package as links.
types: install
	mkdir -p build/types/adaptive_eager
	find build/types/adaptive_eager -type l -delete
	ln -s $(CURDIR)/adaptive/* $(CURDIR)/native $(CURDIR)/cache build/types/adaptive_eager/
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p adaptive_eager

# Half an hour of random programs; FUZZ_SECONDS says otherwise, and FUZZ_SEED=n repeats one.
fuzz: install
	$(BIN)/python tests/fuzz

lines:
	@echo "lines per folder:"
	@for folder in adaptive native cache tests bench; do \
	  count=$$(find $$folder -name '*.py' -o -name '*.cpp' -o -name '*.h' | xargs -r cat | wc -l); \
	  printf '  %-9s %6d\n' $$folder $$count; \
	done

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find adaptive native cache tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	find native -name '*.so' -delete
