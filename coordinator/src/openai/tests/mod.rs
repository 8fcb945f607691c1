mod calls;
mod formats;
mod growing;
mod prompt_bounds;
mod reasoning;
