mod answer_accumulator;
mod api_bodies;
mod formats;
mod prompt_bounds;
mod reasoning;
mod tool_calls;
