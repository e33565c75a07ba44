"""lapwing inside other libraries: each part needs that library, and is imported when it is asked for."""
