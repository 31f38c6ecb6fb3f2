#!/usr/bin/env bash
# The reports that `make report` makes: the toy, SmolLM2, and GPT-2 where it can be had. Ends with the page that lists them all.
set -euo pipefail
cd "$(dirname "$0")/.."
interp=.venv/bin/interp
sentence="When Mary and John went to the store, John gave a drink to"

for model in toy smollm2; do
  "$interp" run sinks --model "$model"
  "$interp" run ratio_rule --model "$model" --limit 4  # every pair of every row of every head: four texts are millions
done

lacks=0
"$interp" run sinks --model gpt2 2>.venv/gpt2.txt || lacks=$?
case $lacks in
  0) "$interp" run ratio_rule --model gpt2 --limit 4 ;;
  2) echo "GPT-2 was left out: $(tail -n 1 .venv/gpt2.txt)" ;;
  *) cat .venv/gpt2.txt >&2; exit "$lacks" ;;
esac

[ ! -f analyses/textbook.py ] || "$interp" run textbook --pages
"$interp" view --model toy --text "The team colour is red. So the players wear" --out reports/view-toy.html
"$interp" view --model smollm2 --text "$sentence" --bos none --out reports/view-smollm2.html
echo
echo "Open this page:"
echo "reports/index.html"
