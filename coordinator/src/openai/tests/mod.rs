mod calls;
mod formats;
mod growing;
mod reasoning;
