mod answer_accumulator;
mod api_bodies;
mod constrained_calls;
mod formats;
mod predictions;
mod prompt_bounds;
mod reasoning;
mod tool_calls;
