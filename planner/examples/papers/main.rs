//! Prints the numbers of the papers beside the planner's answers; `make papers` keeps them in
//! `docs/papers.md`.

mod answer;
mod cells;
mod compare;
mod markdown;
mod place;

fn main() -> Result<(), String> {
    let papers = cells::FILES.into_iter().map(cells::read).collect::<Result<Vec<_>, _>>()?;
    print!("{}", markdown::render(&papers));
    Ok(())
}
