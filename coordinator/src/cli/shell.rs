//! Shell completions and `man` pages, generated from the definitions of the arguments.

use std::io;
use std::path::Path;

use atomic_fs::{PUBLIC_MODE, replace};
use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::low::Low;

/// Returns a shell's completion script.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "coordinator", &mut script);
    script
}

/// Reason why a page cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(
        "{name} is not a command of coordinator, so it has no manual page. Commands are {known}."
    )]
    NoCommand { name: String, known: String },
    #[error("the pages cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Returns the `man` page of a command, or of the program.
///
/// # Errors
/// No such command.
pub fn page(command: Option<&str>) -> Result<Vec<u8>, PageError> {
    let mut program = shown();
    // Gives the commands their full names, as in "coordinator serve".
    program.build();
    let described = match command {
        None => program,
        Some(name) => command_of(&program, name)?,
    };
    let mut text = Vec::new();
    Man::new(described).render(&mut text)?;
    Ok(text)
}

/// Writes all pages into a folder, which is created if necessary, under the names by which `man`
/// finds them.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn write_pages(folder: &Path) -> Result<(), PageError> {
    std::fs::create_dir_all(folder)?;
    let program = shown();
    replace(&folder.join("coordinator.1"), &page(None)?, PUBLIC_MODE)?;
    for name in program.get_subcommands().map(Command::get_name) {
        let file = folder.join(format!("coordinator-{name}.1"));
        replace(&file, &page(Some(name))?, PUBLIC_MODE)?;
    }
    Ok(())
}

fn command_of(program: &Command, name: &str) -> Result<Command, PageError> {
    let command = program.find_subcommand(name).cloned();
    command.ok_or_else(|| {
        let known: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
        PageError::NoCommand { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Returns the arguments without the hidden commands, which generators of completions would show.
fn shown() -> Command {
    let all = Low::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    let said = |text: Option<&StyledStr>| text.cloned().unwrap_or_default();
    Command::new("coordinator")
        .version(env!("CARGO_PKG_VERSION"))
        .about(said(all.get_about()))
        .after_help(said(all.get_after_help()))
        .after_long_help(said(all.get_after_long_help()))
        .args(all.get_arguments())
        .subcommands(commands)
        .disable_help_subcommand(true)
}
