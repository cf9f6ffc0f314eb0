"""What a study takes: operations, disk, and seconds as its finished stages took them."""
