//! Compiles the CUDA sources as C++, with the shim replacing the CUDA compiler's built-ins.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-changed=../source");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(false).warnings(false);
    let compiler = build.get_compiler();
    // cc's own error message is long and does not name the package to install.
    let works = Command::new(compiler.path()).arg("--version").output();
    if !works.is_ok_and(|output| output.status.success()) {
        let name = compiler.path().display();
        println!(
            "cargo::error=The CUDA kernels are tested on the CPU, which needs a C++ compiler: {name} does not run. Install g++ (scripts/install_deps.sh does) or set CXX."
        );
        return;
    }
    build
        .include("cpp")
        .include("../source")
        // Multiply-adds are fused only where the source requests it, as in the PTX.
        .flag("-ffp-contract=off")
        .flag("-fno-strict-aliasing")
        .flag("-fno-exceptions")
        .flag("-Wall")
        .flag("-Wno-unknown-pragmas")
        .file("cpp/module.cpp")
        .file("cpp/launch.cpp")
        .file("cpp/block.cpp")
        .file("cpp/fiber.cpp")
        .compile("tandem_cuda_shim");
}
