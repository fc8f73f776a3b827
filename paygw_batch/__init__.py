"""paygw-batch: pays a sheet of people through a payment gateway, no row twice and no row lost."""
