//! This program as a child process: every process that the coordinator starts comes from here.

use std::process::Command;

/// Environment variables with secrets, which no child process needs: one reads a model's chat
/// template, another what clients sent.
const SECRETS: [&str; 3] = ["TANDEM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Returns a command that runs this very program, even if its file was replaced meanwhile, with
/// this process's environment but for its secrets.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    for secret in SECRETS {
        command.env_remove(secret);
    }
    command
}
