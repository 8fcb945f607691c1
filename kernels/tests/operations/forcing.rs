//! Tests of `TANDEM_KERNELS`, which every binary reads through `Variant::from_env`: it forces a
//! variant that this machine can run and refuses others with a message, before any instruction is
//! tried.

use std::process::Command;

use kernels::{VARIANT_ENV, Variant};

const CHILD: &str = "TANDEM_TEST_FORCING";

/// Returns the choice of a separate process for `value`: the variant's name or the error's message.
fn chosen(test: &str, value: Option<&str>) -> String {
    let program = std::env::current_exe().expect("this program has a name");
    let mut command = Command::new(program);
    let name = format!("{}::{test}", module_path!().split_once("::").expect("a module").1);
    command.args(["--exact", &name, "--nocapture"]).env(CHILD, "1").env_remove(VARIANT_ENV);
    if let Some(value) = value {
        command.env(VARIANT_ENV, value);
    }
    let output = command.output().expect("this program starts again");
    assert!(output.status.success(), "{value:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.lines().find_map(|line| line.split_once("chosen: "));
    line.expect("the child answers").1.to_owned()
}

/// In the child process: prints the choice of the environment, and runs a kernel of it.
fn answer() -> bool {
    if std::env::var_os(CHILD).is_none() {
        return false;
    }
    match Variant::from_env() {
        Ok(variant) => {
            let limits = kernels::ScratchLimits {
                rows: 1,
                linear_inputs: 8,
                positions: 1,
                group: 1,
                head_dim: 8,
            };
            let kernels = kernels::Kernels::new(variant, 1, limits).expect("it can run");
            let mut out = [0.0f32; 8];
            kernels.rms_norm(1, 8, &[1.0; 8], &[1.0; 8], 0.0, None, &mut out);
            assert_eq!(out, [1.0; 8]);
            println!("chosen: {}", variant.name());
        }
        Err(error) => println!("chosen: {error}"),
    }
    true
}

#[test]
fn what_the_machine_has_can_be_forced() {
    if answer() {
        return;
    }
    let test = "what_the_machine_has_can_be_forced";
    for variant in Variant::available() {
        assert_eq!(chosen(test, Some(variant.name())), variant.name());
    }
    assert_eq!(chosen(test, None), Variant::best().name());
    assert_eq!(chosen(test, Some("")), Variant::best().name());
}

#[test]
fn what_the_machine_lacks_is_refused_with_a_sentence() {
    if answer() {
        return;
    }
    let test = "what_the_machine_lacks_is_refused_with_a_sentence";
    for variant in Variant::ALL {
        if variant.is_available() {
            println!("SKIP {test} ({}): this machine has it", variant.name());
            continue;
        }
        let sentence = chosen(test, Some(variant.name()));
        let start = format!("TANDEM_KERNELS={} cannot be used", variant.name());
        assert!(sentence.starts_with(&start) && sentence.ends_with('.'), "{sentence}");
        assert!(sentence.contains(Variant::best().name()), "{sentence}");
    }
}

#[test]
fn an_unknown_name_is_refused_with_the_names_there_are() {
    if answer() {
        return;
    }
    let test = "an_unknown_name_is_refused_with_the_names_there_are";
    for value in ["neon", "AVX2", "avx512 "] {
        let sentence = chosen(test, Some(value));
        assert!(sentence.contains(value) && sentence.ends_with('.'), "{sentence}");
        for variant in Variant::ALL {
            assert!(sentence.contains(variant.name()), "{sentence}");
        }
    }
}
