#!/usr/bin/env bash
# A Chromium for the browser tests: one that is installed, else Debian's where we are root, else Playwright's own. Writes its path to
# .venv/.browser (empty: Playwright's own). With node there, axe-core for the accessibility tests, in .venv/node.
set -euo pipefail
cd "$(dirname "$0")/.."
stop() { echo "browser: $*" >&2; exit 1; }

installed() {
  local name path
  for name in ${INTERP_BROWSER:-} chromium chromium-browser google-chrome google-chrome-stable chrome \
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" "/Applications/Chromium.app/Contents/MacOS/Chromium"; do
    path=$(command -v "$name") && "$path" --version >/dev/null 2>&1 && echo "$path" && return 0
  done
  return 1
}

by_apt() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  echo "browser: installing Chromium with apt-get" >&2
  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
}

by_playwright() {
  echo "browser: installing Playwright's own Chromium" >&2
  .venv/bin/python -m playwright install chromium >/dev/null
}

if ! found=$(installed); then
  if by_apt && found=$(installed); then :
  elif by_playwright; then found=
  else stop "no Chromium or Chrome is installed and none could be had; install one, or name it: INTERP_BROWSER=/path/to/chrome make test"
  fi
fi
if command -v npm >/dev/null && [ ! -f .venv/node/node_modules/axe-core/axe.min.js ]; then
  npm install --silent --no-save --no-package-lock --no-audit --no-fund --prefix .venv/node axe-core@4 >/dev/null ||
    stop "npm could not fetch axe-core@4, which the accessibility tests need; connect and try again"
fi
echo "$found" >.venv/.browser
