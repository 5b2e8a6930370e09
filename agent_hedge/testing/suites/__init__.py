"""What every implementation of a port must do, as pytest classes: subclass one and give it the fixture it names."""
