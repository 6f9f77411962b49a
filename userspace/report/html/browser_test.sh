#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Loads the HTML export in a browser without a window: the script must run to its
# end, without an error, in each view. Usage: browser_test.sh EXPORT_HTML_TEST
set -u
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; break; fi
done
if [ -z "$browser" ]; then
  echo "SKIPPED: no chromium here, so the script of the HTML export was NOT run." \
    "Install the package chromium to run this test." >&2
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
MYCROFT_BROWSER_PAGES=$work "$1" --gtest_filter='*WritesPagesForTheBrowser' >/dev/null || {
  echo "the pages could not be written" >&2; exit 1; }
failures=0
# check PAGE FRAGMENT TEXT...: the page as the script left it holds each TEXT.
check() {
  local page=$1 fragment=$2 dom="$work/dom.html" root text
  shift 2
  rm -rf "$work/profile"
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync \
    --user-data-dir="$work/profile" --window-size=1400,900 --virtual-time-budget=2000 \
    --dump-dom "file://$work/$page.html#$fragment" >"$dom" 2>"$work/log" || {
    echo "$page#$fragment: the browser failed:"; tail -5 "$work/log"; failures=1; return; }
  root=$(grep -m1 -o '<html[^>]*>' "$dom")
  case $root in
    *data-error*) echo "$page#$fragment: error in the script: $root"; failures=1 ;;
    *data-ready=\"1\"*) ;;
    *) echo "$page#$fragment: the script did not reach its end: $root"; failures=1 ;;
  esac
  for text in "$@"; do
    grep -qF -- "$text" "$dom" || { echo "$page#$fragment: no '$text'"; failures=1; }
  done
}
check full "" 'data-slices="20"' 'data-incidents="1"' '<dd>GPU of rank 1' 'because of the GPU of rank 1</h1>'
check full "view=flame&theme=dark" 'data-theme="dark"' 'Where the time of all ranks went'
check full "rank=1&select=0.0.2&t=0,0.01&q=AllReduce&why=1" '10 matches' 'rank 1 sends late' '1 outlined'
check empty "" '<h1 id="summary">nothing recorded in this window</h1>'
check hostile "" 'data-slices="20"'
exit $failures
