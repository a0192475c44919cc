# shellcheck shell=bash disable=SC2034  # what is set here is read by the scripts
# Shared by the launch scripts: messages, showing or running a command, reading the s2sjax command.
# To be sourced, not run. Works with bash 3.2 and newer.

dry_run=no
# Set by read_words: the s2sjax command for each of several hosts; that for a single host; the folder of the run or the
# sweep; the part of a sweep, if it is given.
words=()
alone=()
out=
part=

# Prints the comment at the top of the script.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# A mistake of the user: one line that says what is wrong and what to do.
error() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# A failure while running.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Notes are printed as comments, so that the output of a dry run can be pasted into a shell.
note() { printf '# %s\n' "$*"; }

# quote WORD...: the words on one line, as a shell reads them back.
quote() {
  local word line='' escaped="'\\''"
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./:=@%+,-]*) line="$line '${word//\'/$escaped}'" ;;
      *) line="$line $word" ;;
    esac
  done
  printf '%s\n' "${line# }"
}

# run COMMAND...: runs it, or prints it in a dry run.
run() {
  if [ "$dry_run" = yes ]; then
    quote "$@"
  else
    "$@"
  fi
}

# needs PROGRAM SOLUTION: the program must be installed, except in a dry run.
needs() {
  [ "$dry_run" = yes ] || command -v "$1" >/dev/null || error "$1 is not installed: $2, or use --dry-run"
}

# takes OPTION VALUE...: an option must have a value.
takes() {
  if [ $# -lt 2 ] || [ -z "$2" ] || [ "$2" = -- ]; then
    error "$1 has no value: write $1 VALUE (see $(basename "$0") --help)"
  fi
}

# number OPTION VALUE LEAST
number() {
  case $2 in
    '' | *[!0-9]*) error "$1 is '$2': it must be a whole number, at least $3" ;;
  esac
  [ "$2" -ge "$3" ] || error "$1 is $2: it must be at least $3"
}

# read_words WORD...: the s2sjax command after `--`, as for `s2sjax launch`. --distributed may be left out. The hosts of
# a sweep are not joined: each trains a part of the runs.
read_words() {
  local word before='' option=--out
  local ways='-- train FILE --out DIR, -- sweep FILE --name NAME, or -- evaluate RUN'
  [ $# -gt 0 ] || error "there is nothing to run: end the command with -- train FILE --out DIR"
  case $1 in
    train) ;;
    sweep) option=--name ;;
    evaluate) out=${2:-} ;;
    *) error "'$1' does not run on several hosts: write $ways" ;;
  esac
  [ $# -gt 1 ] || error "$1 what? Write $ways"
  for word in "$@"; do
    case $before in
      "$option") out=$word ;;
      --part) part=$word ;;
    esac
    case $word in
      "$option"=*) out=${word#*=} ;;
      --part=*) part=${word#*=} ;;
      --distributed) continue ;;
    esac
    alone+=("$word")
    before=$word
  done
  [ -n "$out" ] || error "$option is missing after --: give a folder that all hosts see"
  case $out in
    gs: | gs:/ | gs:// | gs:///* | s3: | s3:/ | s3:// | s3:///*)
      error "$option $out names no bucket: write ${out%%:*}://BUCKET/FOLDER"
      ;;
  esac
  words=("${alone[@]}" --distributed)
  [ "${alone[0]}" = sweep ] || return 0
  words=("${alone[@]}")
  case $out in
    /* | gs://* | s3://*) ;;
    *) out=runs/$out ;;
  esac
}

# shares_out: this script gives each host its part of the sweep.
shares_out() { [ -z "$part" ] || error "--part is $part: leave it out, for each host gets its own part"; }
