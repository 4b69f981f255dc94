# find_package(onnxc) gives
#
#   onnxc::onnxc            the headers
#   onnxc::runtime          and the thread pool, the allocator, what models of strings call
#   onnxc::images           and what models call that decode images
#   onnxc::mpi              where find_package(MPI) has found MPI before: the communicator of ranks, made from its source
#   onnxc_add_model(...)    a library target with a compiled model
#
# onnxc_add_model(<target> <model.onnx>
#     [NAME <prefix>]       prefix of the symbols and name of the header; the target's name by default
#     [OPTIONS <option>...] options of the compiler, such as --mcpu native or --input-dim batch=1; --target is that of CMake
#     [DEPENDS <file>...])  other files that the model is read from: external data
#
# A target that links <target> finds "<prefix>.h" and "onnxc.h" and has the model's code. Models with strings or
# images need onnxc::runtime or onnxc::images too. The program is the command onnxc of this package; the variable
# ONNXC_COMPILER names another.
cmake_minimum_required(VERSION 3.13)

get_filename_component(_onnxc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

find_program(ONNXC_COMPILER onnxc HINTS "${_onnxc_prefix}/bin" NO_CMAKE_FIND_ROOT_PATH)
if(NOT ONNXC_COMPILER)
    set(onnxc_FOUND FALSE)
    set(onnxc_NOT_FOUND_MESSAGE "the command onnxc is neither in ${_onnxc_prefix}/bin nor in the path")
    return()
endif()

if(NOT TARGET onnxc::onnxc)
    find_package(Threads REQUIRED)
    add_library(onnxc::onnxc INTERFACE IMPORTED)
    set_target_properties(onnxc::onnxc PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_onnxc_prefix}/include")

    # What Rust's standard library needs of the system.
    if(WIN32)
        set(_onnxc_system "ws2_32;userenv;ntdll;dbghelp;bcrypt")
    elseif(APPLE)
        set(_onnxc_system "")
    else()
        set(_onnxc_system "m;${CMAKE_DL_LIBS}")
    endif()
    foreach(_onnxc_pair "runtime;support" "images;images")
        list(GET _onnxc_pair 0 _onnxc_target)
        list(GET _onnxc_pair 1 _onnxc_library)
        set(_onnxc_file "${_onnxc_prefix}/lib/${CMAKE_STATIC_LIBRARY_PREFIX}onnxc_runtime_${_onnxc_library}${CMAKE_STATIC_LIBRARY_SUFFIX}")
        add_library(onnxc::${_onnxc_target} STATIC IMPORTED)
        set_target_properties(onnxc::${_onnxc_target} PROPERTIES
            IMPORTED_LOCATION "${_onnxc_file}"
            INTERFACE_LINK_LIBRARIES "onnxc::onnxc;Threads::Threads;${_onnxc_system}")
    endforeach()
endif()

if(TARGET MPI::MPI_C AND NOT TARGET onnxc::mpi)
    set(_onnxc_mpi "${_onnxc_prefix}/share/onnxc/mpi")
    add_library(onnxc::mpi INTERFACE IMPORTED)
    set_target_properties(onnxc::mpi PROPERTIES
        INTERFACE_SOURCES "${_onnxc_mpi}/onnxc_mpi.c"
        INTERFACE_INCLUDE_DIRECTORIES "${_onnxc_mpi}"
        INTERFACE_LINK_LIBRARIES "onnxc::runtime;MPI::MPI_C")
endif()

include("${CMAKE_CURRENT_LIST_DIR}/onnxcTarget.cmake")

function(onnxc_add_model target model)
    cmake_parse_arguments(ARG "" "NAME" "OPTIONS;DEPENDS" ${ARGN})
    if(ARG_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "onnxc_add_model: unknown arguments: ${ARG_UNPARSED_ARGUMENTS}")
    endif()
    set(name "${target}")
    if(ARG_NAME)
        set(name "${ARG_NAME}")
    endif()
    get_filename_component(model "${model}" ABSOLUTE)
    if(NOT EXISTS "${model}")
        # A file that another rule makes exists only when that has run.
        get_source_file_property(generated "${model}" GENERATED)
        if(NOT generated)
            message(FATAL_ERROR "onnxc_add_model: there is no file ${model}")
        endif()
    endif()
    set(folder "${CMAKE_CURRENT_BINARY_DIR}/onnxc/${target}")
    file(MAKE_DIRECTORY "${folder}")
    set(header "${folder}/${name}.h")
    set(options ${ARG_OPTIONS})
    get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if("${options}" MATCHES "--target[=;]([^;]+)")
        set(triple "${CMAKE_MATCH_1}")
    else()
        onnxc_target(triple)
        if(triple)
            list(APPEND options --target "${triple}")
        endif()
    endif()
    # The compiler recognizes the kind of file by the extension.
    _onnxc_is_source(is_source "${triple}")
    if(is_source)
        if(NOT "C" IN_LIST languages)
            message(FATAL_ERROR "onnxc_add_model: a model for ${triple} is C, which the project does not enable: project(... LANGUAGES C)")
        endif()
        set(object "${folder}/${name}.c")
    else()
        set(object "${folder}/${name}.o")
    endif()
    add_custom_command(
        OUTPUT "${object}" "${header}"
        COMMAND "${ONNXC_COMPILER}" "${model}" -o "${object}" --name "${name}" ${options}
        DEPENDS "${model}" "${ONNXC_COMPILER}" ${ARG_DEPENDS}
        COMMENT "Compiling ${model}"
        VERBATIM)
    set_source_files_properties("${object}" PROPERTIES GENERATED TRUE)
    if(NOT is_source)
        set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE)
    endif()
    add_library(${target} STATIC "${object}" "${header}")
    if("C" IN_LIST languages)
        set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    else()
        set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
    target_include_directories(${target} PUBLIC "${folder}")
    target_link_libraries(${target} PUBLIC onnxc::onnxc)
endfunction()
