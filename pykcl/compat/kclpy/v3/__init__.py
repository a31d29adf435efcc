"""amazon_kclpy.v3: `processor`."""
