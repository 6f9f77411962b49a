#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Opens a speedscope export in speedscope itself (the package of npm), in a browser
# without a window: its own importer must take the file, and its title must be the
# file's. Usage: speedscope_test.sh MYCROFT RECORDING [FOLDER for the screenshot]
set -u
version=1.25.0
skip() { echo "SKIPPED: $1, so the export was NOT opened in speedscope." >&2; exit 77; }

browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; break; fi
done
[ -n "$browser" ] || skip "no chromium here"
command -v npm >/dev/null || skip "no npm here"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && timeout 60 npm pack --silent "speedscope@$version" >/dev/null 2>&1 &&
  tar xzf speedscope-*.tgz) || skip "npm could not fetch speedscope $version"

"$1" export "$2" --format speedscope -o "$work/out.json" || { echo "the export failed"; exit 1; }
# What speedscope's own command does: a script that hands the file over by name.
open() { # FILE NAME WHAT-TO-LEAVE
  printf 'speedscope.loadFileFromBase64("%s", "%s")' "$2" "$(base64 -w0 "$1")" >"$work/load.js"
  rm -rf "$work/profile"
  timeout 90 "$browser" --headless --no-sandbox --disable-quic --no-first-run --use-gl=angle \
    --use-angle=swiftshader --enable-unsafe-swiftshader --allow-file-access-from-files \
    --disable-background-networking --disable-component-update --disable-sync \
    --user-data-dir="$work/profile" --window-size=1400,900 --virtual-time-budget=10000 \
    "$3" \
    "file://$work/package/dist/release/index.html#localProfilePath=$work/load.js" 2>"$work/log"
}
title() { grep -o '<title>[^<]*</title>' "$work/dom.html"; }

open "$work/out.json" out.speedscope.json --dump-dom >"$work/dom.html"
name="$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["name"])' "$work/out.json") - speedscope"
case $(title) in
  *"$name"*) echo "speedscope $version shows '$name'" ;;
  *) echo "speedscope did not take the file: $(title), expected '$name'"; tail -5 "$work/log"; exit 1 ;;
esac

# The check itself must be able to fail.
echo '{"profiles": [{"type": "evented"}]}' >"$work/bad.json"
open "$work/bad.json" bad.speedscope.json --dump-dom >"$work/dom.html"
case $(title) in
  *"$name"*) echo "speedscope took a broken file: this test proves nothing"; exit 1 ;;
esac
if [ -n "${3-}" ]; then open "$work/out.json" out.speedscope.json "--screenshot=$3/speedscope.png" >/dev/null; fi
exit 0
