//! This program as a child process. The coordinator starts all its processes with this module.

use std::process::Command;

/// Environment variables that contain secrets. No child process needs them: one evaluates a model's
/// chat template, another processes input from clients.
const SECRET_VARIABLES: [&str; 3] = ["TANDEM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Returns a command that runs this very program, even if its file was replaced meanwhile, in this
/// process's environment without its secrets.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    for secret in SECRET_VARIABLES {
        command.env_remove(secret);
    }
    command
}
