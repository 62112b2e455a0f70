#!/bin/sh
# The compiler, through ccache where that is installed. Every build calls it alike, so that installing ccache compiles nothing
# again. ccache must be told to look past a precompiled header's time stamps, else it never hits (needs -fpch-preprocess too).
command -v ccache >/dev/null || exec "$@"
CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime exec ccache "$@"
