"""The families, one file each. `chainrule.families` lists them."""
