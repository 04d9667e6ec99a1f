# Everything that is done to Holdfast, by one word each. `make` alone lists the words.

REDOCLY := 2.77.0
WEBHOOKS_NPM := 1.1.1
WEBHOOKS_PYPI := 1.1.0
CHECK_JSONSCHEMA := 0.39.0

.DEFAULT_GOAL := help
.PHONY: help run stack test soak lint bench interop

help: ## List what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Serve on http://127.0.0.1:8080, on an embedded database in this directory
	cargo run -- serve

stack: ## Run the production shape, two instances behind TLS with a queue, until Ctrl-C
	cargo build
	tests/with-postgres.sh tests/stack.sh

test: ## Run every test, on SQLite and on a real PostgreSQL, which is found or installed
	tests/with-postgres.sh cargo test

soak: ## Run the tests that take minutes: more of the same, for longer
	HOLDFAST_SOAK=1 tests/with-postgres.sh cargo test --release -- --ignored soak_

lint: ## Check the formatting, the lints and the code's own documentation
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --document-private-items

bench: ## Measure against the targets, on release builds (needs wrk and pgbench)
	tests/with-postgres.sh cargo bench --bench holdfast -- $(ONLY)

interop: ## Try the API's document, our signatures and docker-compose.yml on what is not ours (needs npm and python3)
	npm install --prefix target/interop --no-save --no-audit --no-fund --silent \
		@redocly/cli@$(REDOCLY) standardwebhooks@$(WEBHOOKS_NPM)
	python3 -m venv target/interop/venv
	target/interop/venv/bin/pip install --quiet --disable-pip-version-check \
		standardwebhooks==$(WEBHOOKS_PYPI) check-jsonschema==$(CHECK_JSONSCHEMA)
	target/interop/venv/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true \
		target/interop/node_modules/.bin/redocly lint --extends recommended openapi/openapi.json
	cargo test --test interop -- --ignored
