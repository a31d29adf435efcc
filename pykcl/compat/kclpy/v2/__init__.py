"""amazon_kclpy.v2: `processor`."""
