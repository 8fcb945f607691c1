mod answer_accumulator;
mod formats;
mod prompt_bounds;
mod reasoning;
mod tool_calls;
