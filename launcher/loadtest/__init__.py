"""`seedance bench`: the load tool users get. What we measure ourselves with is `launcher.bench`."""
