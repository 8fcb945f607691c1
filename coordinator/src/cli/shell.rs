//! Shell completions and `man` pages, generated from the definitions of the arguments.

use std::io;
use std::path::Path;

use atomic_fs::{PUBLIC_MODE, replace};
use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::CliArgs;

/// Returns a shell's completion script.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible_command(), "coordinator", &mut script);
    script
}

/// Reason why a page cannot be made or written.
#[derive(Debug, thiserror::Error)]
pub enum ManPageError {
    #[error(
        "{name} is not a command of coordinator, so it has no manual page. Commands are {known}."
    )]
    UnknownCommand { name: String, known: String },
    #[error("the pages cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Returns the `man` page of a command, or of the program.
///
/// # Errors
/// No such command.
pub fn render_man_page(command: Option<&str>) -> Result<Vec<u8>, ManPageError> {
    let mut program = visible_command();
    // Gives the commands their full names, as in "coordinator serve".
    program.build();
    let described = match command {
        None => program,
        Some(name) => find_command(&program, name)?,
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
pub fn write_man_pages(folder: &Path) -> Result<(), ManPageError> {
    std::fs::create_dir_all(folder)?;
    let program = visible_command();
    replace(&folder.join("coordinator.1"), &render_man_page(None)?, PUBLIC_MODE)?;
    for name in program.get_subcommands().map(Command::get_name) {
        let file = folder.join(format!("coordinator-{name}.1"));
        replace(&file, &render_man_page(Some(name))?, PUBLIC_MODE)?;
    }
    Ok(())
}

fn find_command(program: &Command, name: &str) -> Result<Command, ManPageError> {
    let command = program.find_subcommand(name).cloned();
    command.ok_or_else(|| {
        let known: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
        ManPageError::UnknownCommand { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Returns the arguments without the hidden commands, which generators of completions would show.
fn visible_command() -> Command {
    let all = CliArgs::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    let text_or_default = |text: Option<&StyledStr>| text.cloned().unwrap_or_default();
    Command::new("coordinator")
        .version(env!("CARGO_PKG_VERSION"))
        .about(text_or_default(all.get_about()))
        .after_help(text_or_default(all.get_after_help()))
        .after_long_help(text_or_default(all.get_after_long_help()))
        .args(all.get_arguments())
        .subcommands(commands)
        .disable_help_subcommand(true)
}
