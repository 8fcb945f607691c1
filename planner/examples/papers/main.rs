//! Prints the numbers of the papers next to the planner's answers; `make papers` writes them to
//! `docs/papers.md`.

mod answer;
mod asc;
mod cells;
mod compare;
mod markdown;
mod place;
mod serving;

fn main() -> Result<(), String> {
    let papers = cells::FILES.into_iter().map(cells::read).collect::<Result<Vec<_>, _>>()?;
    let of_serving = serving::cells::FILES.into_iter().map(serving::cells::read);
    let of_serving = of_serving.collect::<Result<Vec<_>, _>>()?;
    let mut runs = serving::runs::Runs::default();
    let serving = serving::markdown::render(&of_serving, &mut runs)?;
    print!("{}{serving}", markdown::render(&papers));
    Ok(())
}
