# Writes OUT (a header with the commit of SOURCE) only when it changed, so that a build without a new commit compiles nothing.
execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --match=no-tag
  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define LLMOPS_COMMIT \"${commit}\"\n" @ONLY)
