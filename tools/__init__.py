"""What makes the documentation: the site's hook and the generated pages. Not part of the package."""
