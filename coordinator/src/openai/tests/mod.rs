mod calls;
mod formats;
mod growing;
