# What `cmake --install` puts where a distribution expects it, and `cpack -G DEB`. The man pages and completions are the
# executable's own words, written after each build.
include(GNUInstallDirs)
set(documents ${CMAKE_BINARY_DIR}/documents)
file(MAKE_DIRECTORY ${documents}/completions)
add_custom_command(OUTPUT ${documents}/man/llmops.1 DEPENDS llmops
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${documents}/man  # no page of a command that is gone
  COMMAND llmops help --man-dir ${documents}/man
  COMMAND llmops completion bash > ${documents}/completions/llmops
  COMMAND llmops completion zsh > ${documents}/completions/_llmops
  COMMAND llmops completion fish > ${documents}/completions/llmops.fish)
add_custom_target(documents ALL DEPENDS ${documents}/man/llmops.1)

install(TARGETS llmops RUNTIME)
install(DIRECTORY ${documents}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${documents}/completions/llmops DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${documents}/completions/_llmops DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${documents}/completions/llmops.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "llmops developers <llmops@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "one executable that trains, checks and runs language models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS bible-kjv)  # the text that `llmops tour` trains on
if(LLMOPS_HAVE_CUDA)  # never linked: a GPU's driver and libraries are opened where they are found
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libcuda1, libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}, libnccl2")
endif()
include(CPack)
