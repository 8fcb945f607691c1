#!/bin/sh
# What `make install` copies below DESTDIR and PREFIX: the program, stripped; what shells complete; pages for man.
set -eu
cd "$(dirname "$0")/.."

program=${CARGO_TARGET_DIR:-target}/release/coordinator
to="${DESTDIR:-}${PREFIX:-/usr/local}"
install -D -s -m 755 "$program" "$to/bin/coordinator"

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
put() {
    file=$1
    shift
    "$program" "$@" > "$made/one"
    install -D -m 644 "$made/one" "$to/share/$file"
}
put bash-completion/completions/coordinator completions bash
put zsh/site-functions/_coordinator completions zsh
put fish/vendor_completions.d/coordinator.fish completions fish
"$program" man --to "$made/man1"
install -D -m 644 -t "$to/share/man/man1" "$made"/man1/*.1
