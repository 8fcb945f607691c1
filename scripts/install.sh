#!/bin/sh
# What `make install` copies below DESTDIR and PREFIX: the program, stripped, and by its other name `tandem`; what shells
# complete; pages for man. PROGRAM names another program than the release build.
set -eu
cd "$(dirname "$0")/.."

program=${PROGRAM:-${CARGO_TARGET_DIR:-target}/release/coordinator}
to="${DESTDIR:-}${PREFIX:-/usr/local}"
install -D -s -m 755 "$program" "$to/bin/coordinator"
ln -sf coordinator "$to/bin/tandem"

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
put() { install -D -m 644 "$made/one" "$to/share/$1"; }
"$program" completions bash > "$made/one"
put bash-completion/completions/coordinator
# bash looks for a file with the name of the command.
sed -i 's/^\( *complete .*\) coordinator$/\1 tandem/' "$made/one"
put bash-completion/completions/tandem
"$program" completions zsh | sed '1s/$/ tandem/' > "$made/one"
put zsh/site-functions/_coordinator
"$program" completions fish > "$made/one"
put fish/vendor_completions.d/coordinator.fish
echo 'complete --command tandem --wraps coordinator' > "$made/one"
put fish/vendor_completions.d/tandem.fish
"$program" man --to "$made/man1"
echo '.so man1/coordinator.1' > "$made/man1/tandem.1"
install -D -m 644 -t "$to/share/man/man1" "$made"/man1/*.1
